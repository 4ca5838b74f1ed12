//! The x86-64 kernels. Both files have one driver that walks the slices, and one closure per
//! conversion.

pub(super) mod avx2;
pub(super) mod avx512;

/// Doubles from here on are whole numbers with a bit step of one.
const TWO_TO_52: f64 = 4_503_599_627_370_496.0;

/// Number of elements of `T` from `pointer` to the next multiple of `align` bytes, at most `most`.
fn until_aligned<T>(pointer: *const T, align: usize, most: usize) -> usize {
    let off = pointer.addr() % align;
    let bytes = if off == 0 { 0 } else { align - off };
    (bytes / size_of::<T>()).min(most)
}
