//! The error figures of a chain's hops, as a plot and as a table.

use cipherhop_proto::v1;
use maud::{Markup, html};

/// Height of the plot between 1e-7 and 1, and the room left of it for the scale, in pixels.
const HEIGHT: usize = 140;
const LEFT: usize = 46;
/// Room above the plot, for the uppermost label.
const TOP: usize = 6;
/// The width that a plot of a few hops fills, and how wide one hop may and must be.
const FILLED: usize = 640;
const PITCH: (usize, usize) = (16, 56);
/// With more hops than this only every fifth has its number below it.
const NUMBERED: usize = 16;

/// Errors on a logarithmic scale from 1e-7 to 1, and the figures; nothing where none is published.
pub(super) fn accuracy(hops: &[v1::HopStatus]) -> Markup {
    let known: Vec<(u32, f64, f64)> = hops
        .iter()
        .filter_map(|h| Some((h.hop, h.max_err_over_f?, h.worst_rel_rms?)))
        .collect();
    if known.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Accuracy" }
        p {
            "Published by the key holder, rounded: the largest error over the full scale F (left bars, blue), and the worst \
             relative rms of a token (right bars, violet)."
        }
        div.wide { (plot(&known)) }
        table aria-label="Accuracy" {
            thead { tr { th { "Hop" } th { "max abs(err)/F" } th { "relative rms" } } }
            tbody {
                @for (hop, error, rms) in &known {
                    tr { td { (hop) } td { (format!("{error:.0e}")) } td { (format!("{rms:.0e}")) } }
                }
            }
        }
    }
}

fn plot(known: &[(u32, f64, f64)]) -> Markup {
    let (least, most) = PITCH;
    let pitch = (FILLED / known.len()).clamp(least, most);
    let bar = (pitch - 4) / 2;
    let tall = |value: f64| {
        let share = (value.max(1e-7).log10() + 7.0) / 7.0;
        (share.clamp(0.0, 1.0) * HEIGHT as f64).round() as usize
    };
    let right = LEFT + known.len() * pitch;
    let (width, height) = (right + 8, TOP + HEIGHT + 22);
    html! {
        svg role="img" aria-label="Errors by hop, logarithmic; the table below has the figures"
            viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) {
            @for power in 0..=7 {
                @let y = power * HEIGHT / 7 + TOP;
                line.grid x1=(LEFT) x2=(right) y1=(y) y2=(y) {}
                text x="2" y=(y + 4) { @if power == 0 { "1" } @else { "1e-" (power) } }
            }
            @for (i, (hop, error, rms)) in known.iter().enumerate() {
                @let (x, e, r) = (LEFT + i * pitch + 2, tall(*error), tall(*rms));
                rect.error x=(x) y=(TOP + HEIGHT - e) width=(bar) height=(e) {
                    title { "hop " (hop) ": " (format!("{error:.0e}")) " of F" }
                }
                rect.rms x=(x + bar) y=(TOP + HEIGHT - r) width=(bar) height=(r) {
                    title { "hop " (hop) ": relative rms " (format!("{rms:.0e}")) }
                }
                @if known.len() <= NUMBERED || hop % 5 == 0 {
                    text.hop x=(x + bar) y=(TOP + HEIGHT + 16) { (hop) }
                }
            }
        }
    }
}
