//! Cuts, which end waits from outside: programs are killed and connections shut down when a path is
//! to stop at once.

use std::sync::{Arc, Mutex, PoisonError};

type Cut = Box<dyn FnMut() + Send>;

#[derive(Clone, Default)]
pub(crate) struct Cuts(Arc<Mutex<Vec<Cut>>>);

impl Cuts {
    pub(crate) fn add(&self, cut: impl FnMut() + Send + 'static) {
        self.lock().push(Box::new(cut));
    }

    pub(crate) fn all(&self) {
        self.lock().iter_mut().for_each(|cut| cut());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Cut>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
