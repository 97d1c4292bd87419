"""Tables of text, in Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

TEX = str.maketrans({"%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$"})


@dataclass(frozen=True)
class Table:
    """A table of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return it in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in row)} |" for row in lines)

    def latex(self) -> str:
        """Return it as a tabular environment of LaTeX."""
        lines = [" & ".join(row).translate(TEX) + r" \\" for row in (self.columns, *self.rows)]
        begin = rf"\begin{{tabular}}{{{'l' * len(self.columns)}}}"
        return "\n".join([begin, *lines, r"\end{tabular}"])
