// Entry point, and reductions over a workgroup of WG invocations through workgroup memory.

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    kernel_main(group, groups, lid);
}

// Linear index of a workgroup of `dispatch_linear`.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

var<workgroup> reduce_partials: array<f32, WG>;

// Sum of `value` over the workgroup; in uniform control flow.
fn reduce_add(value: f32, lid: u32) -> f32 {
    // Reads of the last reduction are done.
    workgroupBarrier();
    reduce_partials[lid] = value;
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width = width / 2u) {
        if lid < width {
            reduce_partials[lid] += reduce_partials[lid + width];
        }
        workgroupBarrier();
    }
    return reduce_partials[0];
}

// Maximum of `value` over the workgroup; in uniform control flow.
fn reduce_max(value: f32, lid: u32) -> f32 {
    // Reads of the last reduction are done.
    workgroupBarrier();
    reduce_partials[lid] = value;
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width = width / 2u) {
        if lid < width {
            reduce_partials[lid] = max(reduce_partials[lid], reduce_partials[lid + width]);
        }
        workgroupBarrier();
    }
    return reduce_partials[0];
}
