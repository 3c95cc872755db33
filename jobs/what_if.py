"""The same trace under other configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf import cli
from purgatory_udf.errors import UserError
from purgatory_udf.outputs import local_folder
from purgatory_udf.whatif.variants import Variant, variants


def _variants(words: list[str], config: Path | None, settings: list[str] | None) -> list[Variant]:
    if not words:
        raise UserError("give at least one --variant NAME key=value…")
    return variants(words, config, settings or [])


def _checks(
    events: str, out: str, variant: list[str], config: Path | None, settings: list[str] | None, html: Path | None
) -> None:
    _variants(variant, config, settings)
    folder = local_folder(out)
    if folder is not None and folder.is_file():
        raise UserError(f"{out}: is a file; --out names a folder")
    table = local_folder(events)
    if table is not None and not table.is_dir():
        raise UserError(f"{events}: no such folder (--events names a table of events, as ingest makes it)")
    if html is not None and html.is_dir():
        raise UserError(f"{html}: is a folder; --html names a file")


@cli.job(checks=_checks)
def main(
    events: Annotated[str, typer.Option(help="Delta table of events, as ingest writes it.")],
    out: Annotated[
        str, typer.Option(help="Folder of the table what_if; a replay of the events that is in it is the baseline.")
    ],
    variant: Annotated[
        list[str],
        typer.Option(
            metavar="NAME KEY=VALUE…",
            help="A variant's name, then its settings, or a YAML file of settings (repeatable).",
        ),
    ],
    config: Annotated[Path | None, typer.Option(help="YAML file of the baseline's settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting of the baseline (repeatable).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="The page.  [default: what-if.html in the folder]", show_default=False)
    ] = None,
) -> None:
    """What other settings would have changed: operation by operation, with every recorded arrival as it was."""
    from purgatory_udf.session import build_session
    from purgatory_udf.whatif.run import what_if

    chosen = _variants(variant, config, settings)
    folder = local_folder(out)
    file = html or (folder / "what-if.html" if folder else None)
    found = what_if(build_session("purgatory-what-if"), events, out, chosen, file)
    print("\n".join(found.lines()))
    if file:
        print(f"Page: {file}")


if __name__ == "__main__":
    main()
