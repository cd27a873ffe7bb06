// Reduction over teams through workgroup memory.

var<workgroup> partials: array<f32, SUMS * WG>;

// Replaces the sums of each invocation by the sums over its team; in uniform control flow.
fn reduce_teams(sums: ptr<function, array<f32, SUMS>>, lid: u32) {
    for (var i = 0u; i < SUMS; i++) {
        partials[i * WG + lid] = (*sums)[i];
    }
    workgroupBarrier();
    for (var width = LANES / 2u; width > 0u; width = width / 2u) {
        if lid % LANES < width {
            for (var i = 0u; i < SUMS; i++) {
                partials[i * WG + lid] += partials[i * WG + lid + width];
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < SUMS; i++) {
        (*sums)[i] = partials[i * WG + lid / LANES * LANES];
    }
}
