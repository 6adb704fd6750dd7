"""``wafl resume``: continue a study that was interrupted."""

from wafl.cli.progress import Json, Quiet, Serve, check_packages, exit_if_diverged, train_and_show
from wafl.cli.shared import Changes, OneStudy, Trust, check_study, reading


def resume(
    folder: OneStudy,
    changes: Changes = None,
    quiet: Quiet = False,
    as_json: Json = False,
    serve: Serve = False,
    trust: Trust = False,
) -> None:
    """Continue a study where it was interrupted, to the same numbers as if it had not been."""
    from wafl.cli.terminal import make_console

    with reading(trust):
        check_packages(serve=serve)
        check_study(folder)
        from wafl.studies.extend import extend
        from wafl.studies.pages.figures import draw_figures
        from wafl.studies.study import Study

        study = extend(folder, changes) if changes else Study.resume(folder)
        if study.folder.status() == "finished":
            results = study.run()  # trains nothing, and repairs the metrics if they were damaged
            figures = "".join(f"\nFigure: {path}" for path in draw_figures(study, results, missing=True))
            make_console().print(f"{folder} is a finished study: there is nothing to train.{figures}", markup=False)
            exit_if_diverged(results)
            return
        train_and_show(study, quiet=quiet, as_json=as_json, serve=serve)
