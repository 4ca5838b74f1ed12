//! The table of CI's steps, with their loads and prerequisites.

use daqmeter_vm as vm;
use vm::shell::{line, need_all, ran, tried};

use super::schedule::Load::{Alone, Build, OneCpu, Waits};
use super::step::{Step, step};
use super::{builds, checks};
use crate::{book, fuzz, miri, published, schema, tidy};

/// Name of the release build of the tool, which most steps run.
const PROGRAM: &str = "program";
const PACKAGES: &str = "Debian packages";
const MESH_FETCH: &str = "mesh guests: kernels";
const FETCH: &str = "guests: kernels";
const PYTHON: &str = "Python: tools";
const FUZZ_BUILD: &str = "fuzz targets build";
const GUESTS: &str = "guests: modules, programs";
const MESH_GUESTS: &str = "mesh guests: programs";
const COPY_MACHINES: &str = "copies: the kernel modules under Debian's kernels in QEMU";
const PEERS_BUILD: &str = "other makers' Etherbone: programs";
const WHEEL: &str = "Python: wheel";
const ZENOH_BUILD: &str = "read-out over Zenoh: build";
const BENCHES: &str = "benchmarks build";
const FUSE_BUILD: &str = "real-device path: build";
const NEON_BUILD: &str = "kernels on AArch64: build";

/// All steps. Builds are in their order: first those that long steps wait for.
pub(super) const STEPS: &[Step] = &[
    step(PACKAGES, Waits, &[], need_all),
    step(PYTHON, Waits, &[PACKAGES], || ran(daqmeter_dist::python_tools())),
    // Both keep Debian's lists in one place.
    step(MESH_FETCH, Waits, &[PACKAGES], || vm::fetch("pmu-vm")),
    step(FETCH, Waits, &[MESH_FETCH], || vm::fetch("copy-vm")),
    step(PROGRAM, Build, &[], || ran(line("cargo build --release --quiet").run())),
    step(MESH_GUESTS, Build, &[MESH_FETCH], || vm::prepare("pmu-vm")),
    step(GUESTS, Build, &[PROGRAM, FETCH], || vm::prepare("copy-vm")),
    step(FUZZ_BUILD, Build, &[], || ran(fuzz::build())),
    step(FUSE_BUILD, Build, &[], builds::fuse),
    step("clippy", Build, &[], || {
        ran(line("cargo clippy --workspace --all-targets --quiet -- -D warnings").run())
    }),
    step("docs", Build, &[], builds::docs),
    step(ZENOH_BUILD, Build, &[], || ran(builds::zenoh("--no-run"))),
    step(BENCHES, Build, &[PROGRAM], builds::benches),
    step(WHEEL, Build, &[PROGRAM, PYTHON], daqmeter_dist::wheel),
    step(PEERS_BUILD, Build, &[PROGRAM], || vm::prepare("peers")),
    step("documentation site and its links", Build, &[], book::book),
    step(NEON_BUILD, Build, &[PACKAGES], builds::neon),
    step("format", OneCpu, &[], builds::format),
    step("tidy", OneCpu, &[], || ran(tidy::run())),
    step("schema", OneCpu, &[], || ran(schema::check())),
    step("kernels on AArch64 (NEON) under qemu", OneCpu, &[NEON_BUILD], checks::neon),
    step("real-device path against FUSE files", OneCpu, &[FUSE_BUILD], checks::fuse),
    step("counters: the mesh's PMU without silicon, in QEMU, 6.1", OneCpu, &[MESH_GUESTS], || {
        vm::boot("pmu-vm", "6.1, ")
    }),
    step("counters: the mesh's PMU without silicon, in QEMU, 6.12", OneCpu, &[MESH_GUESTS], || {
        vm::boot("pmu-vm", "6.12, ")
    }),
    step(
        "topologies: a survey on two sockets of two cores of two threads",
        OneCpu,
        &[MESH_GUESTS],
        || vm::boot("topology-vm", "2-sockets"),
    ),
    step("topologies: a survey on fast and slow cores", OneCpu, &[MESH_GUESTS], || {
        vm::boot("topology-vm", "hybrid")
    }),
    step(COPY_MACHINES, OneCpu, &[GUESTS], || vm::boot("copy-vm", "")),
    step("read-out: the published run's 384 E-links", OneCpu, &[PROGRAM], published::two_channels),
    step("Miri: record, stats, wire, portable kernels, rings", Build, &[], miri::run),
    step(
        "what users install: package and wheel",
        OneCpu,
        &[PROGRAM, WHEEL],
        daqmeter_dist::what_users_install,
    ),
    step("Python: tests, types, notebook", OneCpu, &[PROGRAM, WHEEL], checks::python),
    step("comparisons: their promises, simulated", OneCpu, &[BENCHES], || {
        ran(checks::promises("simulated"))
    }),
    step("fuzz", OneCpu, &[FUZZ_BUILD], || ran(fuzz::run_all(fuzz::CI_SECONDS, None))),
    step("survey, and its page in a browser", Alone, &[PROGRAM], || ran(tried(checks::survey))),
    step("Python: rate", Alone, &[WHEEL], checks::python_rate),
    step("other makers' Etherbone", Waits, &[PROGRAM, PEERS_BUILD], || vm::boot("peers", "")),
    step("read-out between hosts", Alone, &[PROGRAM], || vm::boot("readout", "")),
    step("paths between hosts", Alone, &[PROGRAM], || vm::boot("paths", "")),
    step("the document's tables on emulated boards", Alone, &[PROGRAM], || {
        ran(checks::digitizers())
    }),
    step("the Etherbone study on emulated bridges", Alone, &[PROGRAM], || ran(checks::etherbone())),
    step("read-out: maximum rate and study", Alone, &[PROGRAM], || ran(tried(checks::read_out))),
    step("read-out over Zenoh", Alone, &[ZENOH_BUILD], || ran(tried(|| builds::zenoh("zenoh")))),
    step("copies: the study's figures and claims", Alone, &[PROGRAM, COPY_MACHINES], || {
        ran(tried(checks::copies))
    }),
    step("counters: a mesh on a page", Alone, &[PROGRAM], checks::mesh_page),
];
