//! daqmeter as a Python module, `daqmeter._native`.
//! Without the feature `native`, which the wheel's build sets, it is empty: so the workspace can be
//! built and tested on hosts without Python.

#[cfg(feature = "native")]
mod native;
