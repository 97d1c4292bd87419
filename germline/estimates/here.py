"""Describe this machine for estimates: measured on a CPU, from a data sheet for a GPU."""

import time
from dataclasses import replace

import torch

from germline.config import Config
from germline.engines.dtypes import serving_dtype
from germline.engines.inprocess import torch_device
from germline.engines.pretrained import load_tokenizer, silence_transformers
from germline.engines.prompt_batch import encode_prompt
from germline.estimates.hardware import GPUS, Clock, Hardware, available_bytes, measure_cpu
from germline.estimates.local_files import local_model_folder
from germline.estimates.model_shape import ModelShape
from germline.estimates.workload import TextLengths, text_lengths
from germline.protocols import Task
from germline.types import GermlineError

NAMES = {"4060 Laptop": "laptop-8gb", "T4": "t4", "4090": "24gb", "3090": "24gb", "H100": "80gb"}
"""Part of a GPU's name -> the most similar description."""

OTHER = "24gb"
"""The description whose speed is used for other GPUs; their memory is read from the driver."""


def machine_here(config: Config, shape: ModelShape, clock: Clock = time.perf_counter) -> Hardware:
    """Describe the device on which an engine of this config would run here.

    Args:
        config: of the run.
        shape: of its model, which decides what is measured on a CPU.
        clock: seconds since any fixed moment.

    Raises:
        GermlineError: this machine, or this build of PyTorch, has no such device.
    """
    device = torch_device(getattr(config.engine, "device", "auto"))
    if device.type == "cuda":
        return _gpu(device)
    if threads := getattr(config.engine, "threads", None):
        torch.set_num_threads(threads)
    dtype = serving_dtype(
        getattr(config.engine, "dtype", "float32"), shape.config_dtype, on_gpu=False
    )
    return measure_cpu(dtype, shape.hidden, shape.inner, clock)


def texts_here(config: Config, task: Task | None = None) -> TextLengths:
    """Measure prompts with the model's tokenizer if it is on this machine, else estimate them.

    Args:
        config: of the run.
        task: of the config; None makes it.
    """
    folder = local_model_folder(config.model)
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        return text_lengths(config, task=task)
    with silence_transformers():
        tokenizer, _ = load_tokenizer(str(folder))
    return text_lengths(config, lambda example: encode_prompt(tokenizer, example), task)


def machine_named(name: str) -> Hardware:
    """Return the description of another machine.

    Raises:
        GermlineError: there is no description with that name.
    """
    if name not in GPUS:
        raise GermlineError(f"--hardware={name} is not described: use one of {', '.join(GPUS)}")
    return GPUS[name]


def _gpu(device: torch.device) -> Hardware:
    about = torch.cuda.get_device_properties(device)
    known = next((key for part, key in NAMES.items() if part in about.name), OTHER)
    free, _total = torch.cuda.mem_get_info(device)
    return replace(
        GPUS[known], name=about.name, memory_bytes=float(free), host_bytes=available_bytes()
    )
