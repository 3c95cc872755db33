"""`top`: frame after frame, until interrupted or the replay has ended. Needs no Spark."""

from __future__ import annotations

import time
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from purgatory_udf.errors import UserError
from purgatory_udf.live.boards import read
from purgatory_udf.live.screen import frame
from purgatory_udf.storage.alone import is_held


def show(out: str, once: bool, every: float, rows: int) -> None:
    console = Console()
    if once or not console.is_terminal:
        print("\n".join(_lines(out, rows, console.is_terminal)[0]))
        return
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        ended = False
        while not ended:
            lines, ended = _lines(out, rows, terminal=True)
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)
            if not ended:
                time.sleep(every)


def _lines(out: str, rows: int, terminal: bool) -> tuple[list[str], bool]:
    # Looked at first: what it writes last is read then.
    ended = not is_held(out, "replay")
    boards = read(out)
    if not boards:
        raise UserError(f"{out}: no followed replay has written there yet (replay --follow --out {out} does)")
    return frame(boards, rows, terminal, int(time.time() * 1000), ended), ended
