"""Models that need no hub, by name: what they are and which folder they are in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gyre.types.errors import ModelError

TINY = "tiny"
SMOLLM2 = "smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that can be named instead of giving its folder."""

    summary: str
    folder: Path
    remedy: str
    """What brings the folder back when it is not there."""

    @property
    def is_there(self) -> bool:
        return (self.folder / "config.json").is_file()


def known_models() -> Mapping[str, KnownModel]:
    """Every name, whether or not its folder is there."""
    return {
        TINY: KnownModel(
            summary="a few hundred thousand parameters that speak the tool format",
            folder=Path(__file__).parent / "data" / TINY,
            remedy="it is part of the package: install that again",
        ),
        SMOLLM2: KnownModel(
            summary="SmolLM2-135M-Instruct, a small model that speaks English",
            folder=Path.home() / ".cache" / "gyre" / "models" / SMOLLM2,
            remedy=f"fetch it with `gyre model fetch {SMOLLM2}`",
        ),
    }


def model_folder(model: str) -> Path:
    """The folder of a known name; anything else is taken for a path, whether or not it exists."""
    known = known_models().get(model)
    if known is None:
        return Path(model)
    if not known.is_there:
        message = f"{model}: not found at {known.folder}; {known.remedy}"
        raise ModelError(message)
    return known.folder
