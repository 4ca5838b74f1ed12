//! Copies by DSA's user work queues. `From` means towards the engine's side.

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_sys::dsa::{DevicePortal, Mover as Dsa, WorkQueue, work_queues};
use daqmeter_sys::host::Files;

use super::mover::{Mover, Pair, Side, each};
use crate::request::{CopyContext, CopyRequest, Direction};

pub(super) fn queues() -> Result<Vec<WorkQueue>, String> {
    let (usable, refused): (Vec<WorkQueue>, _) =
        work_queues(&Files::default()).into_iter().partition(|queue| queue.refusal.is_none());
    if !usable.is_empty() {
        return Ok(usable);
    }
    let refusals: Vec<String> = refused.into_iter().filter_map(|queue| queue.refusal).collect();
    Err(if refusals.is_empty() {
        "no DSA work queue below /sys/bus/dsa: modprobe idxd, then accel-config".to_owned()
    } else {
        refusals.join("; ")
    })
}

pub(super) fn waiver() -> Option<String> {
    queues().err()
}

/// Exclusive: lane k on queue k, modulo their number. Shared: all lanes on the first shared queue.
pub(super) fn lanes(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let queues = queues().map_err(Fault::new)?;
    let shared = queues.iter().find(|queue| !queue.dedicated);
    let again = queues.iter().take(request.lanes.saturating_sub(queues.len()));
    if let (CopyContext::Exclusive, Some(queue)) =
        (request.context, again.into_iter().find(|queue| queue.dedicated))
    {
        return Err(Fault::new(format!(
            "dsa: {} lanes for {} work queues, and {} takes one: give --lanes {}",
            request.lanes,
            queues.len(),
            queue.name,
            queues.len()
        )));
    }
    each(request, |lane| {
        let queue = match request.context {
            CopyContext::Exclusive => &queues[lane % queues.len()],
            CopyContext::Shared => shared.ok_or_else(|| {
                Fault::new("dsa: no shared work queue; configure one, or use exclusive")
            })?,
            CopyContext::Cpu | CopyContext::Priority => {
                return Err(Fault::new(
                    "dsa: choose context exclusive or shared; priorities are set with accel-config config-wq --priority",
                ));
            }
        };
        Ok(DsaMover {
            queue: queue.clone(),
            bytes: request.block_bytes,
            open: None,
            stop: StopFlag::default(),
        })
    })
}

struct DsaMover {
    queue: WorkQueue,
    bytes: usize,
    open: Option<(Dsa<DevicePortal>, Pair)>,
    stop: StopFlag,
}

impl DsaMover {
    fn open(&mut self) -> (&mut Dsa<DevicePortal>, &mut Pair) {
        let (engine, pair) = self.open.as_mut().expect("prepared before the first copy");
        (engine, pair)
    }
}

impl Mover for DsaMover {
    fn device(&self) -> String {
        format!("dsa {}", self.queue.name)
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let portal = DevicePortal::open(&self.queue).map_err(|error| match error.errno() {
            Some(1) => Fault::new(format!(
                "{error}; kernels since 2024 keep the portals of some devices for CAP_SYS_RAWIO: run as root"
            )),
            Some(16) => Fault::new(format!("{error}; another program has this dedicated queue")),
            _ => error.into(),
        })?;
        self.open = Some((Dsa::new(portal, &self.queue), Pair::new(self.bytes)?));
        Ok(())
    }

    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        let (bytes, stop) = (self.bytes, self.stop.clone());
        let (engine, pair) = self.open();
        let (from, to) = pair.ends(direction == Direction::To);
        let copied = engine.copy(from, to, bytes, &|| stop.is_set());
        copied.map_err(|error| if stop.is_set() { Fault::interrupted() } else { error.into() })
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        self.open().1.side(side).write(0, bytes);
        Ok(())
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        self.open().1.side(side).read(0, into);
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, Fault> {
        Ok(self.open().1.flush())
    }
}
