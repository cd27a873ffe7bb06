// Reduction over teams: shuffles among SHUFFLE_LANES adjacent invocations, which are in one subgroup, then workgroup memory.

const TEAM_SUBGROUPS: u32 = LANES / SHUFFLE_LANES;
var<workgroup> partials: array<f32, SUMS * (WG / SHUFFLE_LANES)>;

// Replaces the sums of each invocation by the sums over its team; in uniform control flow.
fn reduce_teams(sums: ptr<function, array<f32, SUMS>>, lid: u32) {
    for (var i = 0u; i < SUMS; i++) {
        var sum = (*sums)[i];
        for (var distance = SHUFFLE_LANES / 2u; distance > 0u; distance = distance / 2u) {
            sum += subgroupShuffleXor(sum, distance);
        }
        (*sums)[i] = sum;
    }
    if TEAM_SUBGROUPS > 1u {
        if lid % SHUFFLE_LANES == 0u {
            for (var i = 0u; i < SUMS; i++) {
                partials[(lid / SHUFFLE_LANES) * SUMS + i] = (*sums)[i];
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < SUMS; i++) {
            var sum = 0.0;
            for (var k = 0u; k < TEAM_SUBGROUPS; k++) {
                sum += partials[((lid / LANES) * TEAM_SUBGROUPS + k) * SUMS + i];
            }
            (*sums)[i] = sum;
        }
    }
}
