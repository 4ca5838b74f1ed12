//! daqmeter as a Python module, `daqmeter._native`. Without the feature `native`, with which the
//! wheel is built, there is nothing in it: so the workspace can be built and tested where there is
//! no Python.

#[cfg(feature = "native")]
mod native;
