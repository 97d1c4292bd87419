"""What cannot be said beside the URL of a server, which was started with settings of its own."""

from germline.config.base import Section


def check_server_settings(section: Section, base_url: str | None, *names: str) -> None:
    """Refuse settings that only who starts a server decides about.

    Args:
        section: of the engine.
        base_url: of the server; None where the run starts its engine itself.
        names: the settings, which must be left at their defaults beside it.

    Raises:
        ValueError: one is given all the same.
    """
    if base_url is not None and (given := section.changed(*names)):
        raise ValueError(
            f"{given[0]}={getattr(section, given[0])} would be ignored with base_url="
            f"{base_url}: give it to the server when you start it, and drop it here"
        )
