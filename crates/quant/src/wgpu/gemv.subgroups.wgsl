// Sums over teams, through subgroups, of which S adjacent invocations are in the same team.

const PARTS: u32 = L / S;
var<workgroup> parts: array<f32, SUMS * (WG / S)>;

// Every invocation gets what those of its team have together.
fn add_teams(sums: ptr<function, array<f32, SUMS>>, lid: u32) {
    for (var i = 0u; i < SUMS; i++) {
        var sum = (*sums)[i];
        for (var distance = S / 2u; distance > 0u; distance = distance / 2u) {
            sum += subgroupShuffleXor(sum, distance);
        }
        (*sums)[i] = sum;
    }
    if PARTS > 1u {
        if lid % S == 0u {
            for (var i = 0u; i < SUMS; i++) {
                parts[(lid / S) * SUMS + i] = (*sums)[i];
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < SUMS; i++) {
            var sum = 0.0;
            for (var k = 0u; k < PARTS; k++) {
                sum += parts[((lid / L) * PARTS + k) * SUMS + i];
            }
            (*sums)[i] = sum;
        }
    }
}
