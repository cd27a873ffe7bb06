// Sums over teams, with what every adapter can do.

var<workgroup> parts: array<f32, SUMS * WG>;

// Every invocation gets what those of its team have together.
fn add_teams(sums: ptr<function, array<f32, SUMS>>, lid: u32) {
    for (var i = 0u; i < SUMS; i++) {
        parts[i * WG + lid] = (*sums)[i];
    }
    workgroupBarrier();
    for (var width = L / 2u; width > 0u; width = width / 2u) {
        if lid % L < width {
            for (var i = 0u; i < SUMS; i++) {
                parts[i * WG + lid] += parts[i * WG + lid + width];
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < SUMS; i++) {
        (*sums)[i] = parts[i * WG + lid / L * L];
    }
}
