// Entry point and sums over a workgroup of WG invocations, with what every adapter can do.

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    run(group, groups, lid);
}

// Number of a workgroup of a line that was folded into two dimensions.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

var<workgroup> partial_sums: array<f32, WG>;

// The sum of what every invocation of the workgroup gives.
fn reduce_add(value: f32, lid: u32) -> f32 {
    // Whoever still reads the last sum.
    workgroupBarrier();
    partial_sums[lid] = value;
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width = width / 2u) {
        if lid < width {
            partial_sums[lid] += partial_sums[lid + width];
        }
        workgroupBarrier();
    }
    return partial_sums[0];
}

// The greatest of what the invocations of the workgroup give.
fn reduce_max(value: f32, lid: u32) -> f32 {
    // Whoever still reads the last sum.
    workgroupBarrier();
    partial_sums[lid] = value;
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width = width / 2u) {
        if lid < width {
            partial_sums[lid] = max(partial_sums[lid], partial_sums[lid + width]);
        }
        workgroupBarrier();
    }
    return partial_sums[0];
}
