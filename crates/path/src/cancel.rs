//! Cuts, which end waits from outside: programs are killed and connections shut down when a path is
//! to stop at once.

use std::sync::{Arc, Mutex};

use daqmeter_harness::locked;

type Cut = Box<dyn FnMut() + Send>;

#[derive(Clone, Default)]
pub(crate) struct Cuts(Arc<Mutex<Vec<Cut>>>);

impl Cuts {
    pub(crate) fn add(&self, cut: impl FnMut() + Send + 'static) {
        locked(&self.0).push(Box::new(cut));
    }

    pub(crate) fn all(&self) {
        locked(&self.0).iter_mut().for_each(|cut| cut());
    }
}
