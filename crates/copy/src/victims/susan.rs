//! SUSAN: smallest univalue segment assimilating nucleus. S. M. Smith, J. M. Brady, "SUSAN - A New
//! Approach to Low Level Image Processing", Int. J. of Computer Vision 23 (1), 45-78, 1997. Written
//! from the paper.
//!
//! The USAN of a pixel (the nucleus) is the part of a circular mask of 37 pixels with similar
//! brightness. A small USAN marks an edge, a smaller one a corner; averaging over it smooths
//! without blurring.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

/// Brightness threshold t for another surface; the paper's usual value.
const THRESHOLD: i32 = 20;
/// USAN of the full mask: 36 pixels without the nucleus, each worth 100.
const MASK_MOST: i32 = 3600;
/// Half widths of the rows of the circular mask of radius 3.4: 3, 5, 7, 7, 7, 5, 3 pixels.
const HALF_WIDTHS: [i32; 7] = [1, 2, 3, 3, 3, 2, 1];
/// Radius of the mask in pixels; nuclei nearer to the border are skipped.
const RADIUS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pixels: Vec<u8>,
}

impl Image {
    /// Mean brightness step between neighbours in a row: the noise of a scene with few edges.
    pub(crate) fn mean_step(&self) -> f64 {
        let steps: u64 = self
            .pixels
            .chunks(self.width)
            .flat_map(|row| row.windows(2).map(|pair| u64::from(pair[0].abs_diff(pair[1]))))
            .sum();
        steps as f64 / self.pixels.len() as f64
    }

    fn inner(&self, margin: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (width, height) = (self.width, self.height);
        (margin..height - margin).flat_map(move |y| (margin..width - margin).map(move |x| (x, y)))
    }
}

pub(crate) fn scene(width: usize, height: usize, random: &mut Xoshiro256PlusPlus) -> Image {
    let mut pixels = vec![100_u8; width * height];
    let below = |random: &mut Xoshiro256PlusPlus, most: usize| {
        usize::try_from(random.next_u64() % most.max(1) as u64).unwrap_or(0)
    };
    for _ in 0..12 {
        let (left, top) = (below(random, width), below(random, height));
        let (right, bottom) = (
            (left + width / 8 + below(random, width / 4)).min(width),
            (top + height / 8 + below(random, height / 4)).min(height),
        );
        let shade = u8::try_from(30 + below(random, 200)).unwrap_or(0);
        for row in top..bottom {
            pixels[row * width + left..row * width + right].fill(shade);
        }
    }
    for pixel in &mut pixels {
        *pixel = pixel.saturating_add(u8::try_from(random.next_u64() % 7).unwrap_or(0));
    }
    Image { width, height, pixels }
}

/// Similarity of two brightnesses, by their difference: 100 exp(-(d / t)^6) (equation 4).
struct Likeness([u8; 511]);

impl Likeness {
    fn new(power: i32) -> Likeness {
        let mut table = [0; 511];
        for (at, entry) in table.iter_mut().enumerate() {
            let difference = (at as f64 - 255.0) / f64::from(THRESHOLD);
            let alike = (100.0 * (-difference.powi(power)).exp()).round();
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and 100"
            )]
            let alike = alike as u8;
            *entry = alike;
        }
        Likeness(table)
    }

    #[inline]
    fn of(&self, pixel: u8, nucleus: u8) -> i32 {
        i32::from(self.0[255 + usize::from(pixel) - usize::from(nucleus)])
    }
}

/// Calls `each` with brightness and relative place of every mask pixel except the nucleus.
#[inline]
fn around(image: &Image, x: usize, y: usize, mut each: impl FnMut(u8, i32, i32)) {
    for (row, half) in HALF_WIDTHS.iter().enumerate() {
        let half = half.unsigned_abs() as usize;
        let start = (y + row - RADIUS) * image.width + x - half;
        let dy = i32::try_from(row).unwrap_or(0) - 3;
        for (column, pixel) in image.pixels[start..=start + 2 * half].iter().enumerate() {
            let dx = i32::try_from(column).unwrap_or(0) - i32::try_from(half).unwrap_or(0);
            if dx != 0 || dy != 0 {
                each(*pixel, dx, dy);
            }
        }
    }
}

#[inline]
fn usan(image: &Image, likeness: &Likeness, x: usize, y: usize) -> (i32, i32, i32) {
    let nucleus = image.pixels[y * image.width + x];
    let (mut area, mut moment_x, mut moment_y) = (0, 0, 0);
    around(image, x, y, |pixel, dx, dy| {
        let alike = likeness.of(pixel, nucleus);
        area += alike;
        moment_x += alike * dx;
        moment_y += alike * dy;
    });
    (area, moment_x, moment_y)
}

/// Smooths over the USAN: weights exp(-r^2 / 2 s^2 - d^2 / t^2) without the nucleus (equation 36).
/// If no pixel is similar, it takes the median of the eight neighbours.
pub(crate) fn smooth(image: &Image, out: &mut Image) {
    /// exp(-r^2 / 2 s^2) x 100 with s = 2, by r^2: distances beyond 10 do not occur in the mask.
    const NEARNESS: [i32; 19] =
        [100, 88, 78, 69, 61, 54, 47, 42, 37, 32, 29, 25, 22, 20, 17, 15, 14, 12, 11];
    let likeness = Likeness::new(2);
    out.pixels.copy_from_slice(&image.pixels);
    for (x, y) in image.inner(RADIUS) {
        let at = y * image.width + x;
        let nucleus = image.pixels[at];
        let (mut total, mut weights) = (0_i32, 0_i32);
        around(image, x, y, |pixel, dx, dy| {
            let weight =
                likeness.of(pixel, nucleus) * NEARNESS[(dx * dx + dy * dy).unsigned_abs() as usize];
            total += weight * i32::from(pixel);
            weights += weight;
        });
        out.pixels[at] = if weights > 0 {
            u8::try_from(total / weights).unwrap_or(u8::MAX)
        } else {
            median_of_neighbours(image, x, y)
        };
    }
}

fn median_of_neighbours(image: &Image, x: usize, y: usize) -> u8 {
    let mut neighbours = [0_u8; 8];
    let mut at = 0;
    for row in y - 1..=y + 1 {
        for column in x - 1..=x + 1 {
            if (column, row) != (x, y) {
                neighbours[at] = image.pixels[row * image.width + column];
                at += 1;
            }
        }
    }
    neighbours.sort_unstable();
    u8::midpoint(neighbours[3], neighbours[4])
}

#[derive(Clone, Debug)]
pub(crate) struct Edges {
    likeness_of: Vec<i32>,
    direction: Vec<EdgeDirection>,
    edge: Vec<bool>,
    width: usize,
}

/// Direction in which the response decreases: an edge point must not be weaker than its neighbours
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EdgeDirection {
    Horizontal,
    Vertical,
    Rising,
    Falling,
}

impl Edges {
    pub(crate) fn of(image: &Image) -> Edges {
        let pixels = image.pixels.len();
        Edges {
            likeness_of: vec![0; pixels],
            direction: vec![EdgeDirection::Horizontal; pixels],
            edge: vec![false; pixels],
            width: image.width,
        }
    }

    /// Finds edges: the response is 3/4 of the largest USAN less the USAN (equation 3); only its
    /// ridge stays.
    pub(crate) fn find(&mut self, image: &Image) {
        let likeness = Likeness::new(6);
        let geometric = MASK_MOST * 3 / 4;
        self.edge.fill(false);
        for (x, y) in image.inner(RADIUS) {
            let at = y * self.width + x;
            let (area, moment_x, moment_y) = usan(image, &likeness, x, y);
            self.likeness_of[at] = (geometric - area).max(0);
            // The centre of gravity lies across the edge.
            let (x2, y2) = (moment_x.abs(), moment_y.abs());
            self.direction[at] = match () {
                () if x2 > 2 * y2 => EdgeDirection::Horizontal,
                () if y2 > 2 * x2 => EdgeDirection::Vertical,
                () if (moment_x > 0) == (moment_y > 0) => EdgeDirection::Falling,
                () => EdgeDirection::Rising,
            };
        }
        for (x, y) in image.inner(RADIUS + 1) {
            let at = y * self.width + x;
            let step = match self.direction[at] {
                EdgeDirection::Horizontal => 1,
                EdgeDirection::Vertical => self.width,
                EdgeDirection::Falling => self.width + 1,
                EdgeDirection::Rising => self.width - 1,
            };
            let here = self.likeness_of[at];
            self.edge[at] = here > 0
                && here >= self.likeness_of[at - step]
                && here > self.likeness_of[at + step];
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.edge.iter().filter(|edge| **edge).count()
    }

    pub(crate) fn pixels(&self) -> usize {
        self.edge.len()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Corners {
    response: Vec<i32>,
    found: Vec<(usize, usize)>,
    width: usize,
}

const MAX_CORNERS: usize = 15_000;

impl Corners {
    pub(crate) fn of(image: &Image) -> Corners {
        Corners {
            response: vec![0; image.pixels.len()],
            found: Vec::with_capacity(MAX_CORNERS),
            width: image.width,
        }
    }

    /// Finds corners: a USAN below half of the mask (section 6), with a distant centre of gravity
    /// and in one piece towards it. Keeps the strongest within five by five.
    pub(crate) fn find(&mut self, image: &Image) {
        let likeness = Likeness::new(6);
        let geometric = MASK_MOST / 2;
        self.response.fill(0);
        self.found.clear();
        for (x, y) in image.inner(RADIUS) {
            let (area, moment_x, moment_y) = usan(image, &likeness, x, y);
            if area >= geometric || area == 0 {
                continue;
            }
            // Tests the distance of the centre of gravity against 1.5 pixels, squared and without
            // the division.
            let far = i64::from(moment_x).pow(2) + i64::from(moment_y).pow(2)
                > i64::from(area).pow(2) * 9 / 4;
            if far && in_one_piece(image, &likeness, (x, y), (moment_x, moment_y)) {
                self.response[y * self.width + x] = geometric - area;
            }
        }
        for (x, y) in image.inner(RADIUS + 2) {
            if self.found.len() < MAX_CORNERS && self.is_strongest(x, y) {
                self.found.push((x, y));
            }
        }
    }

    fn is_strongest(&self, x: usize, y: usize) -> bool {
        let here = self.response[y * self.width + x];
        here > 0
            && (y - 2..=y + 2).all(|row| {
                let start = row * self.width + x;
                self.response[start - 2..=start + 2].iter().enumerate().all(|(column, other)| {
                    // The first of equal ones in reading order stays.
                    let before = (row, column) < (y, 2);
                    here > *other || here == *other && !before
                })
            })
    }

    pub(crate) fn count(&self) -> usize {
        self.found.len()
    }
}

/// Tests that all pixels from the nucleus through the centre of gravity to the mask's border are in
/// the USAN.
fn in_one_piece(
    image: &Image,
    likeness: &Likeness,
    (x, y): (usize, usize),
    (dx, dy): (i32, i32),
) -> bool {
    let longest = dx.abs().max(dy.abs());
    let nucleus = image.pixels[y * image.width + x];
    (1..=3).all(|step| {
        let along = |moment: i32, from: usize| {
            let offset = (2 * moment * step + moment.signum() * longest) / (2 * longest);
            from.wrapping_add_signed(isize::try_from(offset).unwrap_or(0))
        };
        let pixel = image.pixels[along(dy, y) * image.width + along(dx, x)];
        // The third diagonal step lies beyond the mask's rounded border.
        step == 3 && dx != 0 && dy != 0 || likeness.of(pixel, nucleus) > 50
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: usize, height: usize, shade: impl Fn(usize, usize) -> u8) -> Image {
        let pixels = (0..height)
            .flat_map(|y| (0..width).map(move |x| (x, y)))
            .map(|(x, y)| shade(x, y))
            .collect();
        Image { width, height, pixels }
    }

    #[test]
    fn a_flat_image_has_no_edges_and_no_corners_and_stays_flat() {
        let flat = image(40, 30, |_, _| 77);
        let (mut edges, mut corners, mut out) =
            (Edges::of(&flat), Corners::of(&flat), flat.clone());
        edges.find(&flat);
        corners.find(&flat);
        smooth(&flat, &mut out);
        assert_eq!((edges.count(), corners.count()), (0, 0));
        assert_eq!(out, flat);
    }

    #[test]
    fn a_step_is_an_edge_where_it_is_and_has_no_corner() {
        let step = image(40, 30, |x, _| if x < 20 { 50 } else { 200 });
        let (mut edges, mut corners) = (Edges::of(&step), Corners::of(&step));
        edges.find(&step);
        corners.find(&step);
        let columns: Vec<usize> =
            (0..step.pixels.len()).filter(|at| edges.edge[*at]).map(|at| at % 40).collect();
        assert!(
            !columns.is_empty() && columns.iter().all(|x| (19..=20).contains(x)),
            "{columns:?}"
        );
        assert_eq!(corners.count(), 0);
    }

    #[test]
    fn a_square_has_four_corners() {
        let square =
            image(
                40,
                40,
                |x, y| {
                    if (12..28).contains(&x) && (12..28).contains(&y) { 200 } else { 50 }
                },
            );
        let mut corners = Corners::of(&square);
        corners.find(&square);
        for wanted in [(12, 12), (27, 12), (12, 27), (27, 27)] {
            let near = |found: &&(usize, usize)| {
                found.0.abs_diff(wanted.0) <= 1 && found.1.abs_diff(wanted.1) <= 1
            };
            assert!(
                corners.found.iter().any(|found| near(&found)),
                "{wanted:?}: {:?}",
                corners.found
            );
        }
        assert_eq!(corners.count(), 4, "{:?}", corners.found);
    }

    #[test]
    fn smoothing_removes_noise_and_keeps_the_step() {
        let noisy = image(60, 40, |x, y| {
            (if x < 30 { 50 } else { 200 }) + u8::try_from((x * 7 + y * 13) % 9).unwrap()
        });
        let mut out = noisy.clone();
        smooth(&noisy, &mut out);
        let noise = |image: &Image| {
            (5..25).map(|x| image.pixels[20 * 60 + x].abs_diff(image.pixels[20 * 60 + x + 1])).max()
        };
        assert!(noise(&out) < noise(&noisy), "{:?} {:?}", noise(&out), noise(&noisy));
        assert!(out.pixels[20 * 60 + 30] - out.pixels[20 * 60 + 29] > 130);
    }
}
