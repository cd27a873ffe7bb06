// Reduction over teams through workgroup memory, of which a browser guarantees 16 KiB: at most 8 sums at a time.

const REDUCED: u32 = min(SUMS, 8u);
var<workgroup> partials: array<f32, REDUCED * WG>;

// Replaces the sums of each invocation by the sums over its team; in uniform control flow.
fn reduce_teams(sums: ptr<function, array<f32, SUMS>>, lid: u32) {
    for (var first = 0u; first < SUMS; first += REDUCED) {
        if first > 0u {
            workgroupBarrier();
        }
        for (var i = 0u; i < REDUCED; i++) {
            partials[i * WG + lid] = (*sums)[first + i];
        }
        workgroupBarrier();
        for (var width = LANES / 2u; width > 0u; width = width / 2u) {
            if lid % LANES < width {
                for (var i = 0u; i < REDUCED; i++) {
                    partials[i * WG + lid] += partials[i * WG + lid + width];
                }
            }
            workgroupBarrier();
        }
        for (var i = 0u; i < REDUCED; i++) {
            (*sums)[first + i] = partials[i * WG + lid / LANES * LANES];
        }
    }
}
