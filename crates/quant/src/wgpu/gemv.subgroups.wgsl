// Sums of SUMS values over a workgroup, through its subgroups, which have at least four invocations.

const SUMS: u32 = R * T;
var<workgroup> partial_rows: array<f32, SUMS * (WG / 4u)>;

// Invocation i < SUMS gets the sum of what every invocation has at i.
fn reduce_rows(sums: ptr<function, array<f32, SUMS>>, lid: u32) -> f32 {
    for (var i = 0u; i < SUMS; i++) {
        let sum = subgroupAdd((*sums)[i]);
        if subgroup.z == 0u {
            partial_rows[i * (WG / 4u) + subgroup.x] = sum;
        }
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < subgroup.y; i++) {
        total += partial_rows[min(lid, SUMS - 1u) * (WG / 4u) + i];
    }
    return total;
}
