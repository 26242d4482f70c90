module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xi32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xi32, #hivm.address_space<gm>>,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 1 : index
  %c1 = arith.constant 0 : index
  %v1 = hivm.hir.get_block_idx -> i64
  %v2 = hivm.hir.get_block_num -> i64
  %v3 = arith.index_cast %v1 : i64 to index
  %v4 = arith.index_cast %v2 : i64 to index
  scf.for %turn5 = %v3 to %c0 step %v4 {
    %ub6 = memref.alloc() : memref<256xi32, #hivm.address_space<ub>>
    %ub7 = memref.alloc() : memref<128xi32, #hivm.address_space<ub>>
    %gm8 = memref.reinterpret_cast %tensor_x to offset: [%c1], sizes: [256], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<256xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub9 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [256], strides: [1] : memref<256xi32, #hivm.address_space<ub>> to memref<256xi32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm8 : memref<256xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub9 : memref<256xi32, strided<[1]>, #hivm.address_space<ub>>)
    %ub10 = memref.alloc() : memref<128xi32, #hivm.address_space<ub>>
    hivm.hir.vdeinterleave ins(%ub6 : memref<256xi32, #hivm.address_space<ub>>) outs(%ub10 : memref<128xi32, #hivm.address_space<ub>>) channel_num = 2 index_mode = <CHANNEL_0>
    %ub11 = memref.alloc() : memref<128xi32, #hivm.address_space<ub>>
    hivm.hir.vdeinterleave ins(%ub6 : memref<256xi32, #hivm.address_space<ub>>) outs(%ub11 : memref<128xi32, #hivm.address_space<ub>>) channel_num = 2 index_mode = <CHANNEL_1>
    hivm.hir.vadd ins(%ub10, %ub11 : memref<128xi32, #hivm.address_space<ub>>, memref<128xi32, #hivm.address_space<ub>>) outs(%ub7 : memref<128xi32, #hivm.address_space<ub>>)
    %gm12 = memref.reinterpret_cast %tensor_y to offset: [%c1], sizes: [128], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub13 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [128], strides: [1] : memref<128xi32, #hivm.address_space<ub>> to memref<128xi32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub13 : memref<128xi32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm12 : memref<128xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
