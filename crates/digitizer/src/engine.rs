//! Read-out and conversion of boards, one thread each, as an engine of the harness.

use std::sync::Arc;

use daqmeter_harness::facts::last_level_cache_bytes;
use daqmeter_harness::{Fault, Job, Problem, Request, Session, StepPlan};

use crate::devices;
use crate::devices::sis8300::emulated::{EmulatedCrate, Profile};
use crate::events::Events;
use crate::function::Function;
use crate::names;
use crate::request::DigitizerRequest;
use crate::session::BoardSession;

impl Request for DigitizerRequest {
    const KIND: &'static str = "digitizer";
    const DESCRIPTION: &'static str =
        "reads digitizer boards in parallel and converts their samples";

    fn example() -> DigitizerRequest {
        DigitizerRequest {
            devices: vec!["emu:l0".to_owned(), "emu:ku0".to_owned()],
            samples: 3200,
            function: Function::All,
            unpaced: true,
            ..DigitizerRequest::default()
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        Ok(Job {
            waiver: self.conversion.waiver(),
            is_emulated: self.is_emulated(),
            owns_device: !self.is_emulated(),
            memory_bytes: self.memory_bytes(),
            steps: match (self.passes, self.is_triggered(), self.reads) {
                (0, false, 0 | 1) => None,
                (0, false, reads) => Some(StepPlan::ByStage(reads)),
                (passes, ..) => Some(StepPlan::ByPass(passes)),
            },
            ..Job::new(self, names::join(&self.devices), open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        self.check_options()
    }
}

/// Refuses a missing real board by name.
fn open(request: &DigitizerRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let names = request.devices().map_err(|problem| Fault::new(problem.text))?;
    let crate_ = EmulatedCrate::new(Profile::clone(&request.profile), !request.unpaced);
    let events = Arc::new(Events::of(names.len()));
    let session = |board| -> Result<Box<dyn Session>, Fault> {
        let session = BoardSession::new(board, request, events.clone(), last_level_cache_bytes())?;
        Ok(Box::new(session))
    };
    let boards = devices::open(&names, &crate_)?;
    boards.into_iter().map(session).collect()
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::Engine;
    use daqmeter_record::{Param, Workload};

    use super::*;

    const ENGINE: Engine = Engine::of::<DigitizerRequest>();

    fn workload() -> Workload {
        ENGINE.example()
    }

    fn open_workload(workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        ENGINE.parse(workload)?.open()
    }

    fn refusal(workload: Workload) -> String {
        open_workload(&workload).err().map(|fault| fault.0).unwrap_or_default()
    }

    #[test]
    fn digitizer_conforms_fused_and_with_any_decimation() {
        let conforms = |workload| {
            daqmeter_harness::conformance::run(&ENGINE.parse(&workload).unwrap());
        };
        conforms(workload());
        for (offset, factor) in [(0_u64, 1_u64), (7, 1), (0, 10), (13, 3)] {
            let workload = workload()
                .with("block_bytes", 1000_u64)
                .with("dec_offset", offset)
                .with("dec_factor", factor);
            conforms(workload);
        }
    }

    #[test]
    fn bad_requests_name_the_parameter_and_what_is_wanted() {
        for (name, value, says) in [
            ("samples", Param::Int(0), "1 to 1073741824"),
            ("samples", Param::Int(1 << 31), "1 to 1073741824"),
            ("dec_factor", Param::Int(0), "1 or more"),
            ("dec_offset", Param::Int(4000), "past the 3200 samples"),
            ("dec_factor", Param::Int(4000), "past the 3200 samples"),
            ("function", Param::Int(9), "0 to 8, 99 or 100"),
            ("access", Param::Int(2), "0 to 1 is wanted"),
            ("scale_factor", Param::Float(f64::NAN), "`scale_factor` is wrong"),
            ("completion", Param::Text("telepathy".into()), "`poll`, `interrupt`"),
            ("isa", Param::Text("mmx".into()), "`isa` is wrong: unknown variant `mmx`"),
            ("store", Param::Text("heap".into()), "`store` is wrong"),
            ("unsigned_q", Param::Text("9".into()), "m.n"),
            ("unsigned_q", Param::Text("40.40".into()), "1 to 63 bits"),
            ("block_bytes", Param::Int(3), "at least 64"),
            ("access", Param::Int(1), "read whole"),
            ("profile", Param::Text("/nonexistent".into()), "ess-2017"),
            ("devices", Param::Text("emu:l0 emu:l0".into()), "named twice"),
            ("devices", Param::Text("emu:l0 emu:l0:gone-after=3".into()), "named twice"),
            ("devices", Param::Text("emu:l0 emu:l00".into()), "named twice"),
            ("devices", Param::Text("/dev/null /proc/self/root/dev/null".into()), "named twice"),
            ("devices", Param::Text("emu:zz".into()), "emu:l0"),
        ] {
            let mut asked = workload().with(name, value.clone());
            if value == Param::Int(1) {
                asked = asked.with("block_bytes", 4096_u64);
            }
            let found = refusal(asked);
            assert!(found.contains(says), "{name}={value}: {found}");
        }
        let found = refusal(workload().with("function", 100_u64).with("access", 1_u64));
        assert!(found.contains("use access 0"), "{found}");
        let found = refusal(workload().with("function", 100_u64).with("completion", "poll"));
        assert!(found.contains("writes without a trigger"), "{found}");
    }

    /// Regression: the run kept no sample and printed 746 MB/s (issue 14, A10).
    #[test]
    fn a_decimation_that_keeps_nothing_is_refused_with_what_would_keep_something() {
        let asked = |samples: u64, offset: u64, factor: u64| {
            let asked = workload().with("samples", samples).with("dec_offset", offset);
            asked.with("dec_factor", factor).with("function", 2_u64)
        };
        let said = refusal(asked(112, 111, 2));
        assert!(said.contains("`dec_factor` is 2") && said.contains("none is kept"), "{said}");
        assert!(said.contains("lower dec_offset to 110"), "{said}");
        assert_eq!(refusal(asked(112, 110, 2)), "");
        assert_eq!(refusal(asked(112, 0, 112)), "");
        assert!(refusal(asked(112, 1, 112)).contains("none is kept"));
    }

    /// The portable kernel always stores through the caches, and its figure was shown as one of
    /// non-temporal stores.
    #[test]
    fn stores_that_an_instruction_set_has_not_are_refused_and_waived_in_plans() {
        let asked = workload().with("isa", "portable").with("store", "non-temporal");
        let reason = "portable has no non-temporal stores; use cached";
        assert_eq!(ENGINE.parse(&asked).unwrap().waiver.as_deref(), Some(reason));
        assert_eq!(refusal(asked), reason);
        assert_eq!(ENGINE.parse(&workload()).unwrap().waiver, None);
    }

    #[test]
    fn samples_round_up_to_sixteen_and_to_a_whole_dma_write_of_the_pattern() {
        for (samples, function, wanted) in [(17_u64, 0_u64, 32), (33, 0, 48), (33, 100, 64)] {
            let asked = workload().with("samples", samples).with("function", function);
            assert_eq!(DigitizerRequest::of(&asked).unwrap().samples_per_read(), wanted);
        }
    }

    #[test]
    fn every_option_of_the_original_reaches_the_stages() {
        for (function, name, value, stages) in [
            (0_u64, "samples", Param::Int(3200), "func_readout"),
            (1, "samples", Param::Int(3200), "func_readout func_decsca"),
            (5, "samples", Param::Int(3200), "func_readout func_umn2double"),
            (100, "samples", Param::Int(3200), "func_pattern"),
            (4, "completion", "poll".into(), "wait_trigger func_readout func_no_decsca"),
            (4, "block_bytes", Param::Int(65_536), "readout+func_no_decsca"),
        ] {
            let asked = workload().with("devices", "emu:l0").with("function", function);
            let sessions = open_workload(&asked.with(name, value)).unwrap();
            let names: Vec<String> = sessions[0].stages().into_iter().map(|it| it.name).collect();
            assert_eq!(names.join(" "), stages);
        }
    }
}
