var<workgroup> carried: array<vec4<u32>, WG>;

// What the invocation gives whose number differs in the bit `distance`; all come here.
fn across(v: vec4<u32>, distance: u32, lid: u32) -> vec4<u32> {
    if distance * subgroup.y < WG {
        return subgroupShuffleXor(v, distance);
    }
    // Whoever still reads what was carried last.
    workgroupBarrier();
    carried[lid] = v;
    workgroupBarrier();
    return carried[lid ^ distance];
}
