"""The words of TextArena's games, which tasksets of verifiers play (Wordle, Hangman, and others).

TextArena makes its dictionary again for every game, from lists that come with it and from NLTK's
data: 1.2 s and an attempt to download, where a game takes milliseconds. Tried with textarena 0.7.4.
"""

import functools
import sys

PACKAGES = "words averaged_perceptron_tagger_eng"


def keep_dictionary() -> None:
    """Make the dictionary once per process, if a taskset has imported TextArena.

    Called before the first game is made: its module takes the name from `word_lists`.
    """
    if "textarena" not in sys.modules:
        return
    from textarena.envs.utils import word_lists

    if isinstance(word_lists.EnglishDictionary, type):
        word_lists.EnglishDictionary = functools.cache(word_lists.EnglishDictionary)


def missing_data(error: Exception) -> str | None:
    """Return what to type where NLTK did not find data, None for another error."""
    if not isinstance(error, LookupError) or "NLTK" not in str(error):
        return None
    return (
        f"NLTK's data is not there ({PACKAGES.replace(' ', ', ')}), and germline downloads "
        f"nothing: type `python -m nltk.downloader -d FOLDER {PACKAGES}` on a machine with a "
        "network, and set the environment variable NLTK_DATA to that folder"
    )
