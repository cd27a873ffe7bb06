// Sums of SUMS values over a workgroup, with what every adapter can do.

const SUMS: u32 = R * T;
var<workgroup> partial_rows: array<f32, SUMS * WG>;

// Invocation i < SUMS gets the sum of what every invocation has at i.
fn reduce_rows(sums: ptr<function, array<f32, SUMS>>, lid: u32) -> f32 {
    for (var i = 0u; i < SUMS; i++) {
        partial_rows[i * WG + lid] = (*sums)[i];
    }
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width = width / 2u) {
        if lid < width {
            for (var i = 0u; i < SUMS; i++) {
                partial_rows[i * WG + lid] += partial_rows[i * WG + lid + width];
            }
        }
        workgroupBarrier();
    }
    return partial_rows[min(lid, SUMS - 1u) * WG];
}
