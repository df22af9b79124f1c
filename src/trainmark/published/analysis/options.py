"""Read the options of an analysis, by the names that the public tool gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le
from pydantic import ValidationError

from trainmark.documents import Frozen, make_usage_error
from trainmark.errors import UsageError, suggest_nearest
from trainmark.published.analysis.sources import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

AUTO = "auto"
PositiveCount = Annotated[int, Ge(1), Le(10**15)]  # up to here floats count exactly


class Options(Frozen):
    """The options of an analysis; None: the log or the preset decides.

    Names and values are those of the public log analyzer; ``docs/analyze.md`` explains each.
    ``position`` and ``range`` select a word and its characters in a line with the keyword, and
    ``index`` is the kind of the figure: 1 is a speed.
    """

    keyword: str = ""
    separator: str = ""
    position: int | None = None
    range: str = ""
    base_batch_size: PositiveCount | None = None
    skip_steps: Annotated[int, Ge(0)] = 0
    steps_per_value: PositiveCount | None = None
    model_mode: Annotated[int, Ge(-2), Le(4)] | None = None
    ips_unit: str | None = None
    time_unit: Literal["s", "ms"] | None = None
    gpu_num: PositiveCount | None = None
    run_mode: Literal["sp", "mp"] | None = None
    model_name: str | None = None
    mission_name: str = ""
    direction_id: int = 0
    index: int = 1
    keyword_loss: str = ""
    log_with_profiler: str | None = None
    profiler_path: str | None = None
    preset: str | None = None
    failed: bool = False

    @property
    def reads_words(self) -> bool:
        """Tell whether values are words at a position instead of the number behind a keyword.

        Each of these options is about words: the text between two words, the place of the word in
        its line, and the characters of the word that count.
        """
        return bool(self.separator or self.position is not None or self.range)

    def check(self) -> None:
        """Check that the preset is known, and that there is something to look for.

        A position alone does not say which lines of the log have a value: the keyword does, as a
        text in these lines, or the preset, which knows the keyword of a trainer.

        Raises:
            UsageError: the preset is unknown, or there is neither a keyword nor a preset.
        """
        if self.preset not in {None, AUTO, *NAMES}:
            fix = suggest_nearest(str(self.preset), [*NAMES, AUTO])
            raise UsageError(f"there is no preset {self.preset!r}", where="preset", fix=fix)
        if not (self.keyword or self.preset):
            fix = "set keyword=TEXT, as written in the log, or preset=auto"
            raise UsageError("no keyword to search for", where="keyword", fix=fix)


def parse_options(values: Mapping[str, str]) -> Options:
    """Return the options of a command line.

    Args:
        values: text of each option, by its name.

    Raises:
        UsageError: an unknown key, or a value outside its type or bounds.
    """
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        # ``where`` is the text before the option's name in the message: there is none.
        raise make_usage_error(error, Options, where="") from None
