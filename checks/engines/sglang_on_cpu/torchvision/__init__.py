"""Stands where torchvision would: text models call nothing of it."""

from absent_package import declare_absent  # type: ignore[import-not-found]  # beside it, once installed

__version__ = "0.0.0"

declare_absent(__name__)
