"""Define named methods: options, inherited from parts, that fix some parts of a method and leave the others open."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Generic, ParamSpec, dataclass_transform

from wafl.base.options import Part, check_options, frozen, part, plain_signature, unknown_option, with_arguments
from wafl.methods.method import PARTS, Method
from wafl.parts.local_step import LocalStep
from wafl.parts.server import Optimizer, Server
from wafl.weights import ClientWeights, by_examples

P = ParamSpec("P")


@frozen
class About:
    """The facts about a method in the list of methods, in addition to its docstring."""

    paper: Annotated[str, "The publication."]
    equation: Annotated[str, "The minimized function or the update rule, in TeX."]
    use: Annotated[str, "When to use it."]
    lacks: Annotated[Mapping[str, str], "Options that users may expect but that do not exist, and the reasons."]

    @property
    def short(self) -> str:
        """The authors and the year, without the title."""
        return re.sub(r'"[^"]*",? ', "", self.paper)


@dataclass_transform(frozen_default=True)
class Extending:
    """The base class of presets: frozen dataclasses with checked options that fix some parts of a method."""

    about: ClassVar[About]
    built: ClassVar[Mapping[str, type[Part]]]
    """The parts, by slot, that are built from the options, besides those that the preset extends."""

    def __init_subclass__(cls, *, kw_only: bool = False, **built: type[Part]) -> None:
        cls.built = built
        dataclass(frozen=True, kw_only=kw_only)(cls)

    def __post_init__(self) -> None:
        check_options(self)

    def parts(self) -> dict[str, Any]:
        """Return the parts of the method that the preset sets, by slot."""
        extended = {base.slot: part(self, base) for base in type(self).__bases__ if issubclass(base, Part)}
        options = {"step_size" if name == "weights_step" else name: value for name, value in vars(self).items()}
        built = {
            slot: kind(**{field.name: options[field.name] for field in fields(kind) if field.name in options})  # pyright: ignore
            for slot, kind in self.built.items()
        }
        return {**extended, **built}


class Weighted(Extending, kw_only=True):
    """A method that leaves the client weights open."""

    client_weights: Annotated[
        ClientWeights | None, "Each client's weight (wafl.weights); by default its share of the examples."
    ] = None


class Served(Extending, kw_only=True):
    """A method that leaves the server open."""

    server: Annotated[
        Server | Optimizer | None, "How the server combines the clients' models (wafl.servers); by default their mean."
    ] = None


class Stepped(Extending, kw_only=True):
    """A method that leaves the local step open."""

    local: Annotated[LocalStep | None, "How clients use a gradient (wafl.local); by default they descend along it."] = (
        None
    )


class Preset(Generic[P]):
    """A named method: called with its options, it returns a :class:`Method`; its options form signature and help."""

    def __init__(self, options: Any, about: About) -> None:
        self.options: type[Extending] = options
        self.options.about = about
        self.__name__ = self.__qualname__ = options.__name__
        self.__doc__ = with_arguments(options.__doc__, options)
        self.__signature__ = plain_signature(options).replace(return_annotation=Method)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Method:
        """Return the method with these options."""
        for name in kwargs:
            if name not in self.__signature__.parameters:
                why = self.options.about.lacks.get(name)
                unknown = unknown_option(self.__name__, name, self.__signature__.parameters)
                raise TypeError(f"{self.__name__} has no option {name!r}: {why}" if why else unknown)
        options = self.options(*args, **kwargs)
        chosen = {name: value for name, value in vars(options).items() if name in PARTS and value is not None}
        usual: dict[str, Any] = {"objective": None, "client_weights": by_examples()}
        return Method(self.__name__, **{**usual, **chosen, **options.parts()})

    def __repr__(self) -> str:
        return f"wafl.{self.__name__}{self.__signature__}"


def preset(
    paper: str, equation: str, use: str, lacks: Mapping[str, str] | None = None
) -> Callable[[Callable[P, Extending]], Preset[P]]:
    """Return a decorator that turns a dataclass of options into a preset with these facts (:class:`About`)."""
    return lambda options: Preset(options, About(paper, equation, use, lacks or {}))
