module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xf32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xf32, #hivm.address_space<gm>>,
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
    %ub6 = memref.alloc() : memref<1024xf32, #hivm.address_space<ub>>
    %ub7 = memref.alloc() : memref<256xf32, #hivm.address_space<ub>>
    %gm8 = memref.reinterpret_cast %tensor_x to offset: [%c1], sizes: [1024], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<1024xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub9 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [1024], strides: [1] : memref<1024xf32, #hivm.address_space<ub>> to memref<1024xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm8 : memref<1024xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub9 : memref<1024xf32, strided<[1]>, #hivm.address_space<ub>>)
    %v10 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [4, 64], strides: [256, 1] : memref<1024xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[256, 1]>, #hivm.address_space<ub>>
    %v11 = memref.reinterpret_cast %ub6 to offset: [64], sizes: [4, 64], strides: [256, 1] : memref<1024xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[256, 1], offset: 64>, #hivm.address_space<ub>>
    %v12 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [4, 64], strides: [64, 1] : memref<256xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    hivm.hir.vadd ins(%v10, %v11 : memref<4x64xf32, strided<[256, 1]>, #hivm.address_space<ub>>, memref<4x64xf32, strided<[256, 1], offset: 64>, #hivm.address_space<ub>>) outs(%v12 : memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
    %v13 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [4, 64], strides: [64, 1] : memref<256xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    %v14 = memref.reinterpret_cast %ub6 to offset: [128], sizes: [4, 64], strides: [256, 1] : memref<1024xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[256, 1], offset: 128>, #hivm.address_space<ub>>
    %v15 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [4, 64], strides: [64, 1] : memref<256xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    hivm.hir.vadd ins(%v13, %v14 : memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>, memref<4x64xf32, strided<[256, 1], offset: 128>, #hivm.address_space<ub>>) outs(%v15 : memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
    %v16 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [4, 64], strides: [64, 1] : memref<256xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    %v17 = memref.reinterpret_cast %ub6 to offset: [192], sizes: [4, 64], strides: [256, 1] : memref<1024xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[256, 1], offset: 192>, #hivm.address_space<ub>>
    %v18 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [4, 64], strides: [64, 1] : memref<256xf32, #hivm.address_space<ub>> to memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    hivm.hir.vadd ins(%v16, %v17 : memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>, memref<4x64xf32, strided<[256, 1], offset: 192>, #hivm.address_space<ub>>) outs(%v18 : memref<4x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
    %v19 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [4, 4, 64], strides: [256, 64, 1] : memref<1024xf32, #hivm.address_space<ub>> to memref<4x4x64xf32, strided<[256, 64, 1]>, #hivm.address_space<ub>>
    %v20 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [4, 1, 64], strides: [64, 64, 1] : memref<256xf32, #hivm.address_space<ub>> to memref<4x1x64xf32, strided<[64, 64, 1]>, #hivm.address_space<ub>>
    %v21 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [4, 4, 64], strides: [256, 64, 1] : memref<1024xf32, #hivm.address_space<ub>> to memref<4x4x64xf32, strided<[256, 64, 1]>, #hivm.address_space<ub>>
    hivm.hir.vsub ins(%v19, %v20 : memref<4x4x64xf32, strided<[256, 64, 1]>, #hivm.address_space<ub>>, memref<4x1x64xf32, strided<[64, 64, 1]>, #hivm.address_space<ub>>) outs(%v21 : memref<4x4x64xf32, strided<[256, 64, 1]>, #hivm.address_space<ub>>) broadcast = [1]
    %gm22 = memref.reinterpret_cast %tensor_y to offset: [%c1], sizes: [1024], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<1024xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub23 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [1024], strides: [1] : memref<1024xf32, #hivm.address_space<ub>> to memref<1024xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub23 : memref<1024xf32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm22 : memref<1024xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
