"""Implement commands about the next client without a server: ``request``, ``receipt`` and ``merge``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from wafl.cli.commands.certificates import own_data
from wafl.cli.saved import check_signing, only_run, prepare_output
from wafl.cli.terminal import PublicKey, Trust, reading, say, tell

if TYPE_CHECKING:
    from wafl.promises.receipts import Numbers

Model = Annotated[Path, Option(metavar="RUN")]
Signer = Annotated[Path, Option(metavar="KEY")]
RequestFile = Annotated[Path, Argument(metavar="REQUEST")]


def request(
    model: Annotated[Path, Argument(metavar="RUN")],
    invite: Annotated[Path, Option(metavar="FOLDER")],
    sign: Signer,
    questions: Annotated[Path | None, Option(metavar="FILE")] = None,
    trained: Annotated[Path | None, Option(metavar="FILE|FOLDER")] = None,
    deadline: Annotated[str | None, Option(metavar="DATE")] = None,
    output: Annotated[Path, Option("--output", "-o")] = Path("request.json"),
    trust: Trust = False,
) -> None:
    """Write a signed request that asks sites to evaluate a model."""
    with reading(trust):
        check_signing(sign, private=True)
        prepare_output(output)
        from wafl.receipts import Questions
        from wafl.receipts import request as ask
        from wafl.receipts.reply import spare

        asked = Questions() if questions is None else Questions.read(questions)
        _, run = only_run(model)
        made = ask(run, asked, invite=invite, key=sign, trained=trained, deadline=deadline)
        made.save(output)
    if trained is None:
        say("Without --trained, a client that trained can answer too.", typer.colors.YELLOW)
    few = spare(asked, len(made.invited))
    hint = " (with a lower confidence, more may)" if few == 0 else ""
    tell(f"Invited: {', '.join(made.invited)}\nOf these may stay silent: {few}{hint}")
    tell(f"Deadline: {made.deadline}\nModel: {made.model}\nWritten: {output}")


def receipt(
    request: RequestFile,
    model: Model,
    data: Annotated[Path, Option(metavar="FOLDER")],
    sign: Signer,
    key: PublicKey = None,
    again: Annotated[bool, Option("--again")] = False,
    output: Annotated[Path, Option("--output", "-o")] = Path("receipt.json"),
    trust: Trust = False,
) -> None:
    """Write a signed receipt: your answer to a request, computed offline from your own data."""
    with reading(trust):
        check_signing(sign, private=True)
        prepare_output(output)
        from wafl.receipts import receipt as reply
        from wafl.receipts.replying import opened

        asked = opened(request, key)
        _, run = only_run(model)
        made = reply(asked, run, own_data(data, run, None), key=sign, again=again)
        made.save(output)
    if key is None:
        say("Without --key, the request may be from anyone: its signature is not checked.", typer.colors.YELLOW)
    tell(f"{in_words(made.reply, asked.questions.minimum)}\nUnit of the data: {asked.unit}\nWritten: {output}")


def merge(
    request: RequestFile,
    receipts: Annotated[list[Path], Argument(metavar="RECEIPTS...")],
    revoked: Annotated[Path | None, Option(metavar="FILE|FOLDER")] = None,
    output: Annotated[Path, Option("--output", "-o")] = Path("next-client.json"),
) -> None:
    """Merge the receipts of sites into a bound for the next client."""
    with reading(False):
        prepare_output(output, page=True)
        from wafl.receipts import merge as combine

        result = combine(request, receipts, revoked=revoked)
        page = result.save(output)
    for file, why in result.rejected.items():
        say(f"Does not count: {file}: {why}", typer.colors.YELLOW)
    tell(f"{result}\n\nWritten: {output} and {page}")


def in_words(reply: "Numbers | None", minimum: int) -> str:
    """Describe the content of a receipt in words."""
    if reply is None:
        return f"The receipt says: fewer than {minimum} examples."
    values = ", ".join(f"{value:.6g}" for value in reply.values)
    uppers = ", ".join(f"{upper:.6g}" for upper in reply.uppers if upper is not None)
    counts = "\n".join(f"scores above each threshold: {', '.join(f'{each:g}' for each in row)}" for row in reply.above)
    bounds = f"\nupper bound on its expectation: {uppers}" if uppers else ""
    return f"The receipt says: {reply.examples} examples\nat each radius: {values}{bounds}\n{counts}"
