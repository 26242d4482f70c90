// out[r, c] = (a[r, c] + b[r, c]) * 2 for n rows of 64, 16 rows a turn; what a short turn does not load is filled with 0.
module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @scaled_sum(%ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>}, %lock: memref<?xi8>, %workspace: memref<?xi8>, %a: memref<?xf32, #hivm.address_space<gm>>, %b: memref<?xf32, #hivm.address_space<gm>>, %out: memref<?xf32, #hivm.address_space<gm>>, %n32: i32, %g0: i32, %g1: i32, %g2: i32, %p0: i32, %p1: i32, %p2: i32) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %two = arith.constant 2.0 : f32
  %n = arith.index_cast %n32 : i32 to index
  %block = hivm.hir.get_block_idx -> i64
  %first = arith.index_cast %block : i64 to index
  %count = hivm.hir.get_block_num -> i64
  %step = arith.index_cast %count : i64 to index
  %tiles = arith.ceildivsi %n, %c16 : index
  scf.for %tile = %first to %tiles step %step {
    %x = memref.alloc() : memref<16x64xf32, #hivm.address_space<ub>>
    %y = memref.alloc() : memref<16x64xf32, #hivm.address_space<ub>>
    %row = arith.muli %tile, %c16 : index
    %left = arith.subi %n, %row : index
    %rows = arith.minsi %left, %c16 : index
    %offset = arith.muli %row, %c64 : index
    %ga = memref.reinterpret_cast %a to offset: [%offset], sizes: [%rows, 64], strides: [64, 1] : memref<?xf32, #hivm.address_space<gm>> to memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>
    %gb = memref.reinterpret_cast %b to offset: [%offset], sizes: [%rows, 64], strides: [64, 1] : memref<?xf32, #hivm.address_space<gm>> to memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>
    %go = memref.reinterpret_cast %out to offset: [%offset], sizes: [%rows, 64], strides: [64, 1] : memref<?xf32, #hivm.address_space<gm>> to memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>
    %vx = memref.subview %x[0, 0] [%rows, 64] [1, 1] : memref<16x64xf32, #hivm.address_space<ub>> to memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    %vy = memref.subview %y[0, 0] [%rows, 64] [1, 1] : memref<16x64xf32, #hivm.address_space<ub>> to memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>
    %short = arith.cmpi slt, %rows, %c16 : index
    scf.if %short {
      hivm.hir.vbrc ins(%zero : f32) outs(%x : memref<16x64xf32, #hivm.address_space<ub>>)
      hivm.hir.vbrc ins(%zero : f32) outs(%y : memref<16x64xf32, #hivm.address_space<ub>>)
      hivm.hir.load ins(%ga : memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>) outs(%vx : memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
      hivm.hir.load ins(%gb : memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>) outs(%vy : memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
    } else {
      hivm.hir.load ins(%ga : memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>) outs(%vx : memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
      hivm.hir.load ins(%gb : memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>) outs(%vy : memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>)
    }
    hivm.hir.vadd ins(%x, %y : memref<16x64xf32, #hivm.address_space<ub>>, memref<16x64xf32, #hivm.address_space<ub>>) outs(%x : memref<16x64xf32, #hivm.address_space<ub>>)
    hivm.hir.vmul ins(%x, %two : memref<16x64xf32, #hivm.address_space<ub>>, f32) outs(%y : memref<16x64xf32, #hivm.address_space<ub>>)
    hivm.hir.store ins(%vy : memref<?x64xf32, strided<[64, 1]>, #hivm.address_space<ub>>) outs(%go : memref<?x64xf32, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
