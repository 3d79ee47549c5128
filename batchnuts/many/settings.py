"""The section `many` of a config: one model for many data sets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from batchnuts.settings.schema import Settings
from batchnuts.user_models.users_code import Place, refuse_other_than_place

Kept = Literal["draws", "mean", "sd", "quantiles"]


def _a_place(name: str) -> str:
    refuse_other_than_place("simulate", name)
    return name


class SbcSettings(Settings):
    """Simulation-based calibration in place of data."""

    simulate: Annotated[Place, AfterValidator(_a_place)] | None = Field(
        None,
        description="function of a NumPy generator that returns a pair: parameters by name, and data; null: the "
        "model's functions prior and predictive",
    )
    fits: int = Field(1000, ge=10, le=10_000_000, description="how many data sets are simulated and fitted")


class ManySettings(Settings):
    """Many fits of one model (docs/many_fits.md): of data sets, or simulated ones, folds, or priors."""

    by: str | None = Field(None, min_length=1, description="column of model.data whose values tell data sets apart")
    data: str | None = Field(
        None, min_length=1, description="folder of files, one for each fit, like that of model.data"
    )
    mask: str | None = Field(
        None, min_length=1, description="entry of the data that says which rows are data: sizes are padded to few"
    )
    sbc: SbcSettings | None = Field(None, description="simulation-based calibration: {simulate, fits}")
    folds: int | None = Field(None, ge=2, description="exact cross-validation: number of random folds of the rows")
    priors: dict[str, list[float]] | None = Field(
        None, description="values of entries of the data, of which all combinations are fitted, {scale: [1.0, 5.0]}"
    )
    keep: list[Kept] = Field(["draws"], description="what is kept of each fit")
    processes: int | None = Field(None, ge=1, le=100_000, description="processes; null: one for each core")

    @model_validator(mode="after")
    def _one_of(self) -> ManySettings:
        given = [name for name in ("by", "data", "sbc", "folds", "priors") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"found {found}; expected one of by, data, sbc, folds and priors")
        if self.mask is not None and given[0] not in ("by", "data"):
            raise ValueError(f"found mask with {given[0]}, whose data sets are not padded")
        return self
