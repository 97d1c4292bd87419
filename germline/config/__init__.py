"""Settings: the sections of a config, and `load_config`, which reads YAML and overrides.

A config is YAML (or a mapping), plus dotted overrides such as `strategy.sigma=0.002`. The resolved
config is written to the run directory, so a run does not depend on defaults of later versions.
"""

# ruff: noqa: F403 - a section of any module is a section of the package
from germline.config.base import KindSection as KindSection
from germline.config.engines import *
from germline.config.loader import load_config as load_config
from germline.config.loader import validate_config as validate_config
from germline.config.methods import *
from germline.config.row_tasks import *
from germline.config.run_config import *
from germline.config.schedules import *
from germline.config.scorers import *
from germline.config.search import *
from germline.config.tasks import *
