#!/usr/bin/env bash
# Trains on all nodes of a SLURM job: the first node has Ray's head and the run, the others are Ray workers.
#
#   sbatch --nodes=4 examples/ray_on_slurm.sh configs/ray.yaml fleet.engines=32 'fleet.resources={CPU: 2, GPU: 1}'
#   sbatch --nodes=2 examples/ray_on_slurm.sh runs/RUN fleet.engines=16       # continues a run on other nodes
#
# germline[ray] must be installed at the same place on every node, and the model must be readable there: a folder on a
# shared disk, or a Hugging Face id. Five minutes before its time is over, the job finishes the generation at hand.
#SBATCH --job-name=germline
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=B:INT@300
set -euo pipefail

what=${1:?give a config, or the directory of a run, and settings}
shift
verb=train
if [[ -e $what/run.json ]]; then verb=resume; fi

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
ip=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000)) # jobs may share a node
cpus=${SLURM_CPUS_PER_TASK:-1}
start=(ray start --block --disable-usage-stats --num-cpus="$cpus")

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  "${start[@]}" --head --node-ip-address="$ip" --port="$port" --include-dashboard=false \
  --temp-dir="/tmp/ray-$SLURM_JOB_ID" &
for _ in $(seq 60); do
  if ray status --address="$ip:$port" >/dev/null 2>&1; then break; fi
  sleep 1
done
if ((SLURM_JOB_NUM_NODES > 1)); then
  others=$((SLURM_JOB_NUM_NODES - 1))
  srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" "${start[@]}" --address="$ip:$port" &
fi

# The batch shell runs on the first node, because a Ray driver needs a node of the cluster on its machine.
germline "$verb" "$what" fleet.kind=ray fleet.address="$ip:$port" fleet.placement_timeout_s=120 "$@" &
run=$!
trap 'kill -INT "$run"' INT
# The run finishes its generation even if a signal interrupts this wait.
until wait "$run"; status=$?; ! kill -0 "$run" 2>/dev/null; do :; done
exit "$status"
