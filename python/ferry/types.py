"""Types of what the functions return. JSON.md explains each field, and has some that are rarer than these."""
from typing import Any, Dict, List, Optional, TypedDict


class Answer(TypedDict, total=False):
    """Fields of every command."""
    ferry: str
    schema: int
    command: str
    seconds: float
    exit_code: int
    error: Optional[str]


class Progress(TypedDict, total=False):
    event: str
    what: str
    done_bytes: int
    total_bytes: int
    seconds: float
    bytes_per_second: float
    file: Optional[str]


class Layout(TypedDict, total=False):
    tp: int
    pp: int
    vpp: int
    ep: int
    etp: int


class Source(TypedDict, total=False):
    path: str
    format: str
    family: Optional[str]
    iteration: int
    layout: Layout
    parameters: int
    bytes: int
    shards: int
    missing: List[str]
    unexpected: List[str]
    unknown: List[Dict[str, Any]]
    notes: List[str]


class Target(TypedDict, total=False):
    path: str
    format: str
    unit: Optional[str]
    layout: Layout
    files: int
    bytes: int
    tensors: int
    logical_tensors: int
    per_layer_names: bool
    tied: bool
    vocab_size: int
    padded_vocab_size: int
    vocab_rows_new: int
    vocab_rows_copied: int
    vocab_rows_cut: int
    cast_tensors: int


class ConvertResult(TypedDict, total=False):
    read_bytes: int
    written_bytes: int
    resumed_bytes: int
    cast_elements: int
    changed_elements: int
    non_finite: Optional[Dict[str, int]]
    overflowed: Dict[str, int]
    peak_resident_bytes: int


class Convert(Answer, total=False):
    dry_run: bool
    already_complete: bool
    source: Source
    target: Target
    lossy: List[str]
    megatron_flags: str
    peak_memory_bytes: int
    max_memory_bytes: int
    disk_needed_bytes: int
    disk_free_bytes: int
    result: ConvertResult


class Side(TypedDict, total=False):
    """One side of a comparison."""
    path: str
    format: str
    family: Optional[str]
    iteration: int
    layout: Layout
    compared_by_stored_names: bool
    tensors: int
    bytes: int
    padding_tensors: int
    optimizer_tensors_left_out: int
    config: Dict[str, Any]
    unknown: List[Dict[str, Any]]
    notes: List[str]


class Hint(TypedDict, total=False):
    hint: str
    text: str
    tensors: List[str]


class ComparedTensor(TypedDict, total=False):
    name: str
    outcome: str
    dtype_a: str
    dtype_b: str
    shape_a: List[int]
    shape_b: List[int]
    elements: int
    different: int
    outside_tolerance: int
    first: List[int]
    max_difference: Optional[float]
    max_ulp: Optional[float]
    relative_error: Optional[float]
    cosine: Optional[float]
    stored_names: Dict[str, List[str]]


class Verify(Answer, total=False):
    verdict: str
    config_differences: List[Dict[str, Any]]
    training_differences: Optional[List[Dict[str, Any]]]
    read_bytes: int
    a: Side
    b: Side
    tolerance: Dict[str, float]
    num_tensors: int
    counts: Dict[str, int]
    notes: List[str]
    hints: List[Hint]
    tensors: List[ComparedTensor]
    forward: Dict[str, Any]
    training: Dict[str, Any]


class DigestDifference(TypedDict, total=False):
    name: str
    expected: Optional[str]
    found: Optional[str]


class Digest(Answer, total=False):
    path: str
    digest: Dict[str, str]
    tensors: Dict[str, str]
    verdict: str
    list: str
    same: int
    differences: List[DigestDifference]


class InspectedTensor(TypedDict, total=False):
    name: str
    dtype: str
    shape: List[int]
    shards: int
    stored_names: List[str]
    stats: Dict[str, Any]


class Inspect(Answer, total=False):
    source: Source
    stored_tensors: int
    stored_bytes: int
    files: int
    file_list: List[Dict[str, Any]]
    optimizer: Optional[Dict[str, Any]]
    training: Optional[Dict[str, Any]]
    config: Dict[str, Any]
    config_of: str
    record: Dict[str, Any]
    dtypes: Dict[str, Dict[str, int]]
    groups: Dict[str, Dict[str, int]]
    args: Dict[str, Any]
    tensors: List[InspectedTensor]


class Family(TypedDict, total=False):
    family: str
    about: str
    model_type: str
    architecture: str


class Models(Answer, total=False):
    families: List[Family]


class Synth(Answer, total=False):
    family: str
    sparse: bool
    target: Target
