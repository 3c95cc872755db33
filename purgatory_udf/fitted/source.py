"""What `--like` names: a scenario that was fitted before, or a recording to fit one to."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.plans import fitted_of
from purgatory_udf.simulate.load import read
from purgatory_udf.simulate.scenario import Scenario
from purgatory_udf.storage.outputs import require_folder


def require_source(like: str) -> None:
    if is_file(like):
        if not Path(like).is_file():
            raise UserError(f"{like}: no such file (fit writes it)")
    else:
        require_folder(like)


def is_file(like: str) -> bool:
    """Whatever `fit` was told to call it."""
    return like.endswith((".yaml", ".yml")) or Path(like).is_file()


def scenario_like(like: str) -> Scenario:
    """A file needs no session; a folder's tables are read by one."""
    if is_file(like):
        scenario = read(Path(like))
        fitted_of(scenario)
        return scenario
    from purgatory_udf.fitted.fit import fit
    from purgatory_udf.fitted.tables import read_recording
    from purgatory_udf.session import session_for

    return fit(read_recording(session_for("purgatory-fit"), like))
