"""Timelines of the operations of pipeline-parallel training, one row an operation of one worker in one step (parquet).

Source: the columns are those of the timelines published with Lin et al., OSDI 2025 (recorded by NDTimeline).
"""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrows.reducers.records import F64, I64

_MAGIC = b"PAR1"
_WHOLE = ("dp_rank", "stage", "step", "seq_id")
_TIMES = ("start_ts", "duration")
COLUMNS = (*_WHOLE[:3], "optype", *_TIMES, "seq_id")
OPERATIONS = (
    "params-all-gather", "forward-recv", "forward-compute", "forward-send", "backward-recv", "backward-compute",
    "backward-send", "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTimeline:
    """One row an operation. ``op_N`` is a place in ``OPERATIONS``; ``seq_N`` counts operations of one kind on one
    worker in one step; times are in seconds from the step's start.
    """

    dp_rank_N: I64
    stage_N: I64
    step_N: I64
    seq_N: I64
    op_N: I64
    start_s_N: F64
    duration_s_N: F64
    not_understood: NotUnderstood

    def __len__(self) -> int:
        return len(self.op_N)

    @property
    def workers(self) -> tuple[tuple[int, int], ...]:
        """(dp rank, stage) of every worker that has an operation."""
        return tuple(sorted(set(zip(self.dp_rank_N.tolist(), self.stage_N.tolist(), strict=True))))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(np.unique(self.step_N).tolist())


def is_parquet(data: bytes) -> bool:
    return data[:4] == _MAGIC


def read_operation_timeline(data: bytes, name: str = "input") -> OperationTimeline:
    """Every operation of the file; those of an unknown kind are left out and counted.

    Raises:
        UnreadableError: pyarrow is not installed, it is no whole parquet file, a column is missing or of another
            type, a value is missing or out of range, or no operation is known.
    """
    columns = _columns(data, name)
    unread = UnreadList()
    code = {text: place for place, text in enumerate(OPERATIONS)}
    op_N = np.array([code.get(str(one), -1) for one in columns["optype"]], dtype=np.int64)
    known_N = op_N >= 0
    for text in sorted({str(one) for one in columns["optype"][~known_N]}):
        count = int((columns["optype"] == text).sum())
        unread.add(0, text, f"an unknown kind of operation, {count} times")
    if not known_N.any():
        raise UnreadableError(f"{name}: has no operation of a known kind ({', '.join(OPERATIONS)})")
    whole = {key: _integers(columns[key][known_N], key, name) for key in _WHOLE}
    start, duration = (_seconds(columns[key][known_N], key, name) for key in _TIMES)
    return OperationTimeline(
        dp_rank_N=whole["dp_rank"],
        stage_N=whole["stage"],
        step_N=whole["step"],
        seq_N=whole["seq_id"],
        op_N=op_N[known_N],
        start_s_N=start,
        duration_s_N=duration,
        not_understood=unread.done(),
    )


def _columns(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
        arrow = importlib.import_module("pyarrow")
    except ImportError:
        raise UnreadableError(
            f"{name}: is a parquet file, and reading one needs pyarrow; pip install 'narrows[parquet]'"
        ) from None
    try:
        file = parquet.ParquetFile(io.BytesIO(data))
        missing = [one for one in COLUMNS if one not in file.schema_arrow.names]
        if missing:
            raise UnreadableError(
                f"{name}: is a parquet file without column {', '.join(missing)}, so it is no operation timeline; "
                f"one has {', '.join(COLUMNS)}"
            )
        table = file.read(columns=list(COLUMNS))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise UnreadableError(f"{name}: is a damaged parquet file ({error}); copy it again") from None
    return {one: table.column(one).to_pandas().to_numpy() for one in COLUMNS}


def _integers(values: NDArray[Any], key: str, name: str) -> I64:
    if values.dtype.kind not in "iu":
        raise UnreadableError(f"{name}: column {key} holds {values.dtype}; whole numbers without gaps are expected")
    found = values.astype(np.int64)
    if (found < 0).any():
        raise UnreadableError(f"{name}: column {key} holds {int(found.min())}; 0 or more is expected")
    return found


def _seconds(values: NDArray[Any], key: str, name: str) -> F64:
    if values.dtype.kind != "f" or not np.isfinite(values).all() or (values < 0).any():
        raise UnreadableError(f"{name}: column {key} is to hold seconds, finite and not negative")
    return values.astype(np.float64)
