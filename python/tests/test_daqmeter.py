"""The package as its users meet it."""

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import daqmeter

RECORDS = Path(__file__).parents[2] / "crates" / "record" / "testdata" / "v1"


@pytest.fixture
def samples() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 65536, 10_007, dtype=np.uint16)


def test_scaling_is_the_double_arithmetic_to_the_bit(samples):
    wanted = (samples.astype(np.float64) * 0.123 - 45.6).astype(np.float32)
    assert np.array_equal(daqmeter.Scale(0.123, -45.6)(samples), wanted)


def test_casting_keeps_every_third_sample_into_an_array_that_is_there(samples):
    cast = daqmeter.Cast(decimation=3, first=2)
    out = np.full(cast.kept(len(samples)), np.nan, dtype=np.float32)
    assert cast(samples, out) is out
    assert np.array_equal(out, samples[2::3][: len(out)].astype(np.float32))


def test_fixed_point_folds_negative_codes(samples):
    found = daqmeter.FixedPoint(3, 13, signed=True, double=True)(samples)
    assert found.dtype == np.float64
    assert np.array_equal(found, samples.view(np.int16).astype(np.float64) / 2**13)


def test_arrays_of_another_kind_or_shape_are_refused(samples):
    with pytest.raises(TypeError, match="uint16"):
        daqmeter.Cast()(samples.astype(np.int32))
    with pytest.raises(ValueError, match="contiguous"):
        daqmeter.Cast()(samples[::2], np.empty(len(samples), dtype=np.float32)[::2])
    with pytest.raises(ValueError, match="float32"):
        daqmeter.Cast()(samples, np.empty(len(samples)))
    with pytest.raises(ValueError, match="of shape"):
        daqmeter.Cast()(samples, np.empty(3, dtype=np.float32))
    with pytest.raises(ValueError, match="1 or more"):
        daqmeter.Cast(decimation=0)


def test_records_become_the_frames_of_three_libraries():
    records = daqmeter.load(RECORDS)
    assert len(records) >= 2 and records.errors == []
    assert all(record["schema"] == 1 for record in records)
    pandas, polars, arrow = records.to_pandas(), records.to_polars(), records.to_arrow()
    assert len(pandas) == len(polars) == arrow.num_rows
    assert pandas["median_ns"].sum() == pytest.approx(float(polars["median_ns"].sum()))
    assert {"study", "stage", "rate_bytes_per_s"} <= set(arrow.column_names)
    assert len(records.to_polars("samples")) > len(polars)


def test_exported_parquet_and_csv_are_read_by_others(tmp_path):
    """What `daqmeter report` wrote, if CI made it beforehand."""
    import duckdb

    parquet = Path(__file__).parents[2] / "target" / "ci" / "export.parquet"
    if not parquet.exists():
        pytest.skip("target/ci/export.parquet is made by cargo xtask ci")
    rows, fastest = duckdb.sql(f"select count(*), max(rate_bytes_per_s) from '{parquet}'").fetchall()[0]
    import pandas
    import polars

    assert rows == len(pandas.read_parquet(parquet)) == len(polars.read_parquet(parquet))
    assert rows == len(polars.read_csv(parquet.with_suffix(".csv"), infer_schema_length=None))
    assert fastest > 0


def test_a_data_set_of_several_hosts_is_read_as_it_is():
    """What `daqmeter report -o farm.parquet/` wrote, if CI made it beforehand."""
    import dask.dataframe
    import duckdb
    import polars
    import pyarrow.dataset

    farm = Path(__file__).parents[2] / "target" / "ci" / "farm.parquet"
    if not farm.exists():
        pytest.skip("target/ci/farm.parquet is made by cargo xtask ci")
    rows, hosts = duckdb.sql(f"select count(*), count(distinct host) from '{farm}/*/*.parquet'").fetchall()[0]
    arrow = pyarrow.dataset.dataset(farm, partitioning="hive").to_table()
    lazy = polars.scan_parquet(farm).collect()
    frame = dask.dataframe.read_parquet(farm)
    assert rows == len(lazy) == arrow.num_rows == len(frame)
    assert hosts == lazy["host"].n_unique() == len(set(arrow["host"].to_pylist())) == frame["host"].nunique().compute()
    assert rows > hosts > 1 and lazy["host"].null_count() == 0


def test_a_cut_line_is_named_and_the_rest_is_read(tmp_path):
    line = (RECORDS / "digitizer.jsonl").read_text().splitlines()[0]
    path = tmp_path / "cut.jsonl"
    path.write_text(line + "\n" + line[:100])
    records = daqmeter.load(path)
    assert len(records) == 1 and "cut off" in records.errors[0]
    with pytest.raises(FileNotFoundError, match="No such file"):
        daqmeter.load(tmp_path / "nowhere.jsonl")


def test_an_engine_runs_and_leaves_a_record():
    record = daqmeter.run("convert", {"samples": 2000, "function": 3, "scale_factor": 0.5}, seconds=0.01)
    assert record["outcome"] == {"status": "ok"}
    assert record["lanes"][0]["stages"][0]["sample_ns"]
    for call, wanted in [
        (lambda: daqmeter.run("convrt"), "engine: `convrt` is not an engine; there are: null"),
        (lambda: daqmeter.run("convert", {"sample": 1}), "`sample` is not a parameter of convert"),
        (lambda: daqmeter.run("null", seconds=-1), "`-1s` is not a time"),
    ]:
        with pytest.raises(ValueError) as refused:
            call()
        assert wanted in str(refused.value) and "python:" not in str(refused.value), str(refused.value)
    assert "samples" in daqmeter.engines()["convert"]


def test_a_plan_runs_and_its_file_holds_what_it_measured(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'title = "t"\ntime = "2ms"\nrepetitions = 2\n[[sweep]]\nstudy = "s"\nengine = "null"\n'
        '[[sweep]]\nstudy = "s"\nengine = "memory"\nworkload = { read_lines = 1, write_lines = 1 }\n'
        'axes = { read_bytes = ["4KiB", "64KiB"] }\n'
    )
    out = tmp_path / "out.jsonl"
    records = daqmeter.run_plan(plan, out=out)
    assert len(records) == 6 == len(daqmeter.load(out))
    assert len(records.to_pandas()) > 6
    with pytest.raises(FileNotFoundError, match="shipped with daqmeter"):
        daqmeter.run_plan("nonsense.toml")
    precious = tmp_path / "keep.txt"
    precious.write_text("precious")
    with pytest.raises(OSError, match="keep.txt: does not hold records"):
        daqmeter.run_plan(plan, out=precious)
    assert precious.read_text() == "precious"


def test_a_point_that_is_refused_and_a_cut_line_cost_only_themselves(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'title = "t"\ntime = "2ms"\norder = "given"\n[[sweep]]\nstudy = "s"\nengine = "copy"\n'
        'workload = { path = "no-such-way", block_bytes = 64 }\n[[sweep]]\nstudy = "s"\nengine = "null"\n'
    )
    out = tmp_path / "out.jsonl"
    out.write_text('{"schema":1,"cut')
    records = daqmeter.run_plan(plan, out=out)
    assert len(records) == 1 and len(records.errors) == 1 and "no-such-way" in records.errors[0]
    assert len(daqmeter.load(out)) == 1
    assert "the time is over: 0 of 2" in daqmeter.run_plan(plan, budget_s=0.0).errors[0]


def test_ctrl_c_ends_a_run_at_once():
    """A run of an hour in a process of its own, which gets the signal of Ctrl-C."""
    begin = "import daqmeter; print('begins', flush=True); daqmeter.run('memory', {'read_bytes': '4KiB',"
    script = begin + " 'read_lines': 1, 'write_lines': 1}, seconds=3600)"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "begins\n"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said


def felix_block(elink: int, sequence: int, chunks: list[bytes]) -> bytes:
    """A phase-I block of whole chunks, by hand: header, payloads with their trailers, a null at the end."""
    body = b""
    for chunk in chunks:
        body += chunk + b"\0" * (len(chunk) % 2) + (3 << 13 | len(chunk)).to_bytes(2, "little")
    header = (sequence << 11 | elink).to_bytes(2, "little") + (0xABCD).to_bytes(2, "little")
    left = 1020 - len(body)
    # TIMEOUT/null subchunk: type 0, padding before its trailer.
    return header + body + b"\0" * (left - 2) + (left - 2).to_bytes(2, "little")


def test_felix_blocks_become_chunks():
    data = felix_block(5, 0, [b"first", b"second!"]) + felix_block(5, 1, [b"third"])
    chunks, counts = daqmeter.decode_felix(data)
    assert [(chunk.elink, chunk.payload) for chunk in chunks] == [(5, b"first"), (5, b"second!"), (5, b"third")]
    assert counts["blocks"] == 2 and counts["blocks_missing"] == 0 and counts["bad_blocks"] == 0
    _, gap = daqmeter.decode_felix(felix_block(5, 0, [b"a"]) + felix_block(5, 3, [b"b"]))
    assert gap["blocks_missing"] == 2
    with pytest.raises(ValueError, match="cut off"):
        daqmeter.decode_felix(data[:-1])
    with pytest.raises(ValueError, match="byte 1024: no block begins here"):
        daqmeter.decode_felix(data[:1024] + b"\0" * 1024)


def test_an_etherbone_message_becomes_its_records():
    # One record: write 0x1234 to 0x100, then read 0x104 with answers to 0x8000; the golden bytes of a capture's layout.
    message = bytes.fromhex("4e6f1044" + "080f0101" + "00000100" + "00001234" + "00008000" + "00000104")
    found = daqmeter.decode_etherbone(message)
    assert found["records"] == [
        {"flags": ["CYC"], "select": 15, "write": (0x100, [0x1234]), "read": (0x8000, [0x104])}
    ]
    with pytest.raises(ValueError):
        daqmeter.decode_etherbone(message[:-2])


def test_records_are_sliced_and_shown():
    records = daqmeter.load(RECORDS)
    assert len(records) > 1
    part = records[:1]
    assert isinstance(part, daqmeter.Records) and len(part) == 1 and part[0] == records[0]
    assert repr(part).startswith("<daqmeter.Records: 1 record: ")
    assert f"{len(records)} records" in repr(records)
    hostile = dict(records[0], study="<script>")
    shown = daqmeter.Records([json.dumps(hostile)])._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert repr(daqmeter.Records([])) == "<daqmeter.Records: 0 records>"


def test_moments_and_flags_are_numpy_arrays():
    columns = daqmeter.load(RECORDS).columns()
    assert columns["time_utc"].dtype == np.dtype("datetime64[ms]")
    assert columns["emulated"].dtype == np.bool_


def test_empty_masked_and_misaligned_arrays_are_converted_and_a_number_is_refused(samples):
    scale = daqmeter.Scale(0.5, 1.0, decimation=3, first=2)
    assert scale(np.empty(0, np.uint16)).shape == (0,)
    assert scale(np.empty((4, 0), np.uint16)).shape == scale(np.ones((4, 2), np.uint16)).shape == (4, 0)
    masked = np.ma.array(samples, mask=samples % 2 == 0)
    found = scale(masked)
    assert (found.mask == masked.mask[2::3]).all() and (found.data == scale(samples)).all()
    odd = np.frombuffer(b"x" + samples.tobytes(), np.uint8)[1:].view(np.uint16)
    assert not odd.flags.aligned and (scale(odd) == scale(samples)).all()
    with pytest.raises(TypeError, match="0 dimensions"):
        scale(np.array(7, np.uint16))


def test_a_conversion_goes_to_other_processes(samples):
    for conversion in [daqmeter.Scale(0.5, 1.0, decimation=3), daqmeter.FixedPoint(1, 15, signed=True, double=True)]:
        other = pickle.loads(pickle.dumps(conversion))
        assert type(other) is type(conversion) and other.dtype == conversion.dtype
        assert (other(samples) == conversion(samples)).all()


def test_only_names_of_the_package_are_listed():
    assert dir(daqmeter) == sorted(daqmeter.__all__) and "Any" not in dir(daqmeter)


def test_rows_strides_and_signed_codes_are_converted_as_one_by_one():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 65536, (3, 4, 50), dtype=np.uint16)
    scale = daqmeter.Scale(0.123, -45.6)
    whole = scale(codes)
    assert whole.shape == codes.shape
    assert all((whole[i, j] == scale(codes[i, j])).all() for i in range(3) for j in range(4))
    assert (scale(codes[0, 0, ::2]) == whole[0, 0, ::2]).all()
    assert (scale(codes[0].T) == scale(np.ascontiguousarray(codes[0].T))).all()
    tenth = daqmeter.Cast(decimation=10)(codes)
    assert tenth.shape == (3, 4, 5)
    fixed = daqmeter.FixedPoint(1, 15, signed=True)
    assert (fixed(codes.view(np.int16)) == fixed(codes)).all()
    with pytest.raises(TypeError, match="view"):
        scale(codes.view(np.int16))
    with pytest.raises(ValueError, match="shape"):
        scale(codes, out=np.empty(5, np.float32))
