//! Stage `copy`: copied by an instruction.

use daqmeter_copy::CopyPath;
use daqmeter_harness::Fault;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_sys::memory::Buffer;
use serde::{Deserialize, Deserializer, de};

use crate::definition::flow::{Flow, Place};
use crate::definition::kind::{Facts, StageElement};
use crate::element::{Transform, Work};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Copied {
    #[serde(default = "memcpy", deserialize_with = "copy_kernel")]
    by: CopyKernel,
}

fn memcpy() -> CopyKernel {
    CopyKernel::Memcpy
}

fn copy_kernel<'de, D: Deserializer<'de>>(from: D) -> Result<CopyKernel, D::Error> {
    let path = CopyPath::deserialize(from)?;
    path.kernel().ok_or_else(|| {
        let here: Vec<&str> = CopyKernel::available().into_iter().map(CopyKernel::name).collect();
        let here = here.join(", ");
        de::Error::custom(format!(
            "`{path}` does not copy between two blocks here; these do: {here}"
        ))
    })
}

impl StageElement for Copied {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let facts = Facts::of(format!("copy {}", self.by.name()));
        Ok(facts.beside_memory(flow.bytes, 1, 1))
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        Ok(Work::Transform(Box::new(Copy(self.by))))
    }
}

struct Copy(CopyKernel);

impl Transform for Copy {
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault> {
        self.0.copy(from.slice(bytes), to.slice_mut(bytes));
        Ok(bytes)
    }
}
