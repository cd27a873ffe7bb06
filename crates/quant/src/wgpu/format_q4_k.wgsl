// Q4_K, blocks of 256: planes of nibbles and of block headers.
fn load_quants16(row: u32, c: u32) -> Quants16 {
    let start = row * p.w_stride;
    let block = c >> 4u;
    let g = (c & 15u) >> 1u;
    let at = start + 8u * block + 2u * (g >> 1u) + (c & 1u);
    let q = (vector(at) >> vec4<u32>(4u * (g & 1u))) & vec4<u32>(0x0f0f0f0fu);
    let d = scale_and_min(vector(start + 8u * p.w_blocks + block), g);
    return Quants16(q, d.x, -d.y);
}
