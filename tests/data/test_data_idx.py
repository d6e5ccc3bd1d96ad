"""The IDX reader takes exact files only, and every refusal names the path."""

import gzip
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_fd.data.sources import read_idx
from secure_fd.errors import ConfigurationError
from tests.refusals import refused

ARRAY = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 28, 28)])
@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_what_was_written_is_read(tmp_path, shape, name):
    array = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    content = idx_bytes(array)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if path.suffix else content)
    found = read_idx(path)
    assert found.dtype == np.uint8
    assert found.shape == shape
    assert np.array_equal(found, array)


WHOLE = idx_bytes(ARRAY)
DAMAGED = {
    "empty": b"",
    "short_magic": WHOLE[:3],
    "first_byte": b"\1" + WHOLE[1:],
    "not_unsigned_bytes": WHOLE[:2] + b"\x0d" + WHOLE[3:],
    "no_dimensions": b"\0\0\x08\0" + b"\7",
    "header_between_sizes": WHOLE[:8],
    "header_inside_a_size": WHOLE[:10],
    "no_body": WHOLE[:16],
    "body_short_by_one": WHOLE[:-1],
    "body_long_by_one": WHOLE + b"\0",
    # 2^32 x 2^32 is 0 modulo 2^64: a product that wraps would accept the empty body.
    "size_wraps": struct.pack(">BBBB4I", 0, 0, 8, 4, 1 << 16, 1 << 16, 1 << 16, 1 << 16),
}


PACKED = gzip.compress(WHOLE)
FILES = {
    **{f"{name}.gz": gzip.compress(content) for name, content in DAMAGED.items()},
    **DAMAGED,
    "half.gz": PACKED[: len(PACKED) // 2],
    "no_trailer.gz": PACKED[:-4],
    "checksum.gz": PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:],
    "bad_block.gz": PACKED[:10] + b"\xff" * 8,
    "not_gzip.gz": WHOLE,
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_and_named(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    with pytest.raises(ConfigurationError) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert caught.value.field == "data_dir"


def test_a_file_beyond_the_limit_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("secure_fd.data.sources._MAX_BYTES", len(WHOLE) - 1)
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(WHOLE))
    with refused("data_dir"):
        read_idx(path)
