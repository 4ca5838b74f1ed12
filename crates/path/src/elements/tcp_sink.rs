//! Sink `tcp`: sent to a receiver on another host.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place, by, is_address, known_congestion};
use crate::definition::kind::{Facts, SinkElement, element_type};
use crate::element::Sink;
use crate::remote::{Remote, Transport};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpReceiver {
    to: String,
    congestion: Option<String>,
}

element_type!(TcpReceiver, "tcp", SinkElement);

impl SinkElement for TcpReceiver {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        flow.without_card()?;
        known_congestion(self.congestion.as_ref())?;
        is_address(&self.to)?;
        let text = format!("tcp to {}{}", self.to, by(self.congestion.as_ref()));
        Ok(Facts { to: Some(self.to.clone()), is_outside: true, ..Facts::of(text) })
    }

    fn sink(&self, _block_bytes: usize, cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        let transport = Transport::Tcp { congestion: self.congestion.clone() };
        Ok(Box::new(Remote::new(self.to.clone(), transport, cuts.clone())))
    }
}
