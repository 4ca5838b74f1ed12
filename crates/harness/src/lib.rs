//! The one measuring loop, and the traits of engines and observers.
//!
//! An [`Engine`] parses workloads to [`Job`]s; a job opens one [`Session`] for each thread.
//! [`measure`] opens, verifies, warms up, times steps between [`Observer`]s, verifies again, and
//! returns a record. Engines do the work: they never time, format or print. Begin with `run.rs`,
//! then `null.rs`, the simplest engine.

mod barrier;
mod conclude;
mod conditions;
pub mod conformance;
mod cpu_list;
mod cpu_model;
mod devices;
pub mod engine;
pub mod facts;
pub mod frames;
mod guarded;
mod lanes;
mod limits;
mod lock;
mod memory;
mod null;
pub mod observe;
mod open_record;
pub mod placement;
mod processes;
pub mod request;
pub mod run;
mod sample;
pub mod search;
pub mod settings;
mod shipped;
mod slicer;
mod standstill;
mod text_file;

pub use cpu_list::CpuList;
pub use daqmeter_record::{is_default, is_one, one, usual};
pub use devices::CardFamily;
pub use engine::{
    DeviceTime, Fault, Job, LimitSpec, MAX_LANES, Parameter, Session, StageSpec, Tally,
};
pub use facts::Context;
pub use guarded::guarded;
pub use limits::{Limits, best_rate};
pub use lock::locked;
pub use null::NullRequest;
pub use observe::Observer;
pub use open_record::OpenRecord;
pub use request::{Engine, Problem, Request, check_lanes, did_you_mean, nearest_of};
pub use run::{check_fits, failed, measure};
pub use settings::{Settings, StepPlan, StopFlag, ordered};
pub use shipped::{Loaded, Resolved, Shipped, TomlText, digest};
pub use text_file::{MAX_TEXT_BYTES, next_line, text_file, text_input};

#[cfg(test)]
mod fixtures {
    use crate::{Fault, Session, StageSpec, Tally};

    /// Session of one stage, whose step is a closure.
    pub(crate) struct Fake<F> {
        pub(crate) stage: StageSpec,
        pub(crate) step: F,
        pub(crate) verified: Result<(), Fault>,
    }

    impl<F: FnMut(u64) -> Result<(), Fault> + Send> Session for Fake<F> {
        fn device(&self) -> String {
            "test".to_owned()
        }
        fn stages(&self) -> Vec<StageSpec> {
            vec![self.stage.clone()]
        }
        fn prepare(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
            (self.step)(operations)
        }
        fn verify(&mut self) -> Result<(), Fault> {
            self.verified.clone()
        }
        fn tally(&mut self) -> Tally {
            Tally::default()
        }
    }

    /// Makes a folder with these files.
    pub(crate) fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }
}
