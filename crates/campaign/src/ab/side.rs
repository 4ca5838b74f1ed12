//! The process of one side: opens the requested work, and works a slice in each of its turns.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::process::parent_id;
use std::time::Duration;

use daqmeter_harness::{Slices, StopFlag};
use daqmeter_sys::affinity;
use daqmeter_sys::turns::Page;

use super::protocol::{
    Reply, SideRequest, Step, TURN, Task, VERSION, WRITER, finish_step, next_step, set_fault, task,
};

const LOOK: Duration = Duration::from_millis(500);

/// Serves one side over this page until the parent ends it or is gone.
///
/// # Errors
/// Fails for an invalid page. Errors of the work go to the other end.
pub fn serve(page: File) -> Result<(), String> {
    let page = Page::of_file(page).map_err(|error| error.to_string())?;
    let text = page.text().map_err(|error| error.to_string())?;
    let mut side = match Side::begin(&text) {
        Ok(side) => side,
        Err(why) => return say(&page, &Reply::Refused(why)),
    };
    let own_turn = TURN[side.number];
    let mut seen = page.word(own_turn).load(std::sync::atomic::Ordering::Acquire);
    say(&page, &Reply::ready(side.stages.clone()))?;
    let parent = parent_id();
    loop {
        while !page.wait(own_turn, seen, LOOK) {
            if parent_id() != parent {
                return Ok(());
            }
        }
        seen = seen.wrapping_add(1);
        match task(&page) {
            Some(Task::Work) => side.turn(&page)?,
            Some(Task::Verify) => {
                let verified = side.slices.verify();
                let refused = |fault: daqmeter_harness::Fault| Reply::Refused(fault.to_string());
                say(&page, &verified.map_or_else(refused, |()| Reply::Verified))?;
            }
            None => return Err("the page asks for no task that there is".to_owned()),
        }
    }
}

fn say(page: &Page, reply: &Reply) -> Result<(), String> {
    if matches!(reply, Reply::Refused(_)) {
        set_fault(page);
    }
    let text = serde_json::to_string(reply).map_err(|error| error.to_string())?;
    page.set_text(&text).map_err(|error| error.to_string())?;
    page.signal(WRITER);
    Ok(())
}

struct Side {
    number: usize,
    slices: Slices,
    stages: Vec<(String, u64)>,
}

impl Side {
    fn begin(text: &str) -> Result<Side, String> {
        let request: SideRequest = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if request.version != VERSION || request.side > 1 {
            return Err(format!(
                "this binary speaks version {VERSION} of the protocol of sides, not {}",
                request.version
            ));
        }
        // Keeps the memory until the process ends.
        black_box(Vec::<u8>::with_capacity(request.shift_bytes.min(1 << 20))).leak();
        if let Some(cpu) = request.cpu {
            affinity::pin_to(cpu).map_err(|error| error.to_string())?;
        }
        let mut slices = open(&request)?;
        let stages = warm(&mut slices, &request).map_err(|fault| fault.to_string())?;
        let number = request.side;
        Ok(Side { number, slices, stages })
    }

    fn turn(&mut self, page: &Page) -> Result<(), String> {
        while let Some(step) = next_step(page) {
            if step.side != self.number {
                page.signal(TURN[step.side]);
                return Ok(());
            }
            match self.step(step) {
                Ok(slice) => finish_step(page, slice),
                Err(why) => return say(page, &Reply::Refused(why)),
            }
        }
        page.signal(WRITER);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<daqmeter_harness::Slice, String> {
        if step.stage >= self.stages.len() || step.operations == 0 {
            return Err("the page asks for a step that there is not".to_owned());
        }
        let slice = self.slices.slice(step.stage, step.operations);
        slice.map_err(|fault| fault.to_string())
    }
}

fn open(request: &SideRequest) -> Result<Slices, String> {
    let kind = &request.workload.kind;
    let engine = crate::engine(kind).map_err(|_| format!("no engine is named `{kind}`"))?;
    let job = engine.parse(&request.workload);
    let opened = job.and_then(|job| Slices::open(&job, &StopFlag::default()));
    opened.map_err(|fault| fault.to_string())
}

fn warm(
    slices: &mut Slices,
    request: &SideRequest,
) -> Result<Vec<(String, u64)>, daqmeter_harness::Fault> {
    let time = Duration::from_micros(request.slice_us);
    let mut stages = Vec::new();
    for (at, name) in slices.stages().into_iter().enumerate() {
        let operations = match request.operations.get(&name) {
            Some(operations) => slices.slice(at, *operations).map(|_| *operations)?,
            None => slices.operations(at, time)?,
        };
        stages.push((name, operations));
    }
    Ok(stages)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;

    use super::*;

    fn refused(text: &str) -> String {
        let page = Page::create().unwrap();
        page.set_text(text).unwrap();
        serve(page.share().unwrap()).unwrap();
        match serde_json::from_str(&page.text().unwrap()).unwrap() {
            Reply::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_its_reason() {
        for (workload, wanted) in [
            (Workload::new("nothing"), "no engine is named `nothing`"),
            (Workload::new("convert").with("samples", "x"), "samples"),
            (Workload::new("digitizer").with("devices", "/dev/none0"), "none0"),
        ] {
            let request = serde_json::to_string(&SideRequest::new(workload, None)).unwrap();
            let said = refused(&request);
            assert!(said.contains(wanted), "{said}");
        }
        refused("garbage");
        let newer =
            SideRequest { version: VERSION + 1, ..SideRequest::new(Workload::new("null"), None) };
        let said = refused(&serde_json::to_string(&newer).unwrap());
        assert!(said.contains("speaks version"), "{said}");
    }
}
