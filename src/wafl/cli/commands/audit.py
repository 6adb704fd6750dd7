"""``wafl audit``: how far a site's own data are from those of a certificate."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wafl.cli.commands.verify import UNSIGNED, check_certificate, read_data
from wafl.cli.shared import PublicKey, Trust, check_signing, only_run, reading


def audit(
    certificate: Annotated[Path, Argument(metavar="CERTIFICATE")],
    data: Annotated[Path, Option(metavar="FOLDER")],
    model: Annotated[Path, Option(metavar="RUN")],
    key: PublicKey = None,
    trust: Trust = False,
) -> None:
    """See how far your own data are from those of a certificate, label by label, and what it certifies for them."""
    from wafl.cli.terminal import make_console, say

    with reading(trust):
        check_certificate(certificate)
        check_signing(key, private=False)
        from wafl.cli.tables import audited
        from wafl.promises.audit import audit as look
        from wafl.promises.verify import verify
        from wafl.weights.transport.costs import transport_package

        transport_package()
        run = only_run(model)[1]
        checked = verify(certificate, model=run, key=key)
        if not checked.ok:
            raise ValueError(f"{certificate} has wrong lines: wafl verify {certificate} --model {model} shows them")
        result = look(certificate, run, read_data(data, run, None))
    make_console().print(audited(certificate, result))
    if key is None:
        say(UNSIGNED, typer.colors.YELLOW)
