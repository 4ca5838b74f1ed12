"""The compiled part; use the names in `daqmeter`."""

from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str

class NativeConverter:
    doubles: bool
    def __init__(
        self,
        kind: str,
        factor: float,
        offset: float,
        int_bits: int,
        frac_bits: int,
        signed: bool,
        decimation: int,
        first: int,
        non_temporal: bool,
    ) -> None: ...
    def kept(self, samples: int) -> int: ...
    def into(self, raw: npt.NDArray[np.uint16], out: npt.NDArray[Any]) -> None: ...

def read(paths: list[str]) -> tuple[list[str], list[str]]: ...
def columns(lines: list[str], what: str) -> dict[str, Any]: ...
def run_plan(
    name: str, text: str | None, out: str | None, budget_s: float | None
) -> tuple[list[str], list[str]]: ...
def engine_list() -> list[tuple[str, list[tuple[str, str]]]]: ...
def decode_felix(
    data: bytes, abce_kib: int
) -> tuple[list[tuple[int, bytes, list[str]]], dict[str, int]]: ...
def decode_etherbone(data: bytes) -> dict[str, Any]: ...
