// out[i, :] = i < n ? (where[i] >= 0 ? x[where[i], :] : 0) : untouched, a row of 128 halves a turn of an inner loop.
module attributes {hacc.target = #hacc.target<"Ascend910B3">} {
func.func @pick_rows(%x: memref<?xf16, #hivm.address_space<gm>>, %where: memref<?xi32, #hivm.address_space<gm>>, %out: memref<?xf16, #hivm.address_space<gm>>, %n32: i32) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c128 = arith.constant 128 : index
  %zero = arith.constant 0.0 : f16
  %n = arith.index_cast %n32 : i32 to index
  %block = hivm.hir.get_block_idx -> i64
  %first = arith.index_cast %block : i64 to index
  %count = hivm.hir.get_block_num -> i64
  %step = arith.index_cast %count : i64 to index
  %tiles = arith.ceildivsi %n, %c4 : index
  scf.for %tile = %first to %tiles step %step {
    %line = memref.alloc() : memref<128xf16, #hivm.address_space<ub>>
    %base = arith.muli %tile, %c4 : index
    scf.for %k = %c0 to %c4 step %c1 {
      %i = arith.addi %base, %k : index
      %inside = arith.cmpi slt, %i, %n : index
      scf.if %inside {
        %w = memref.load %where[%i] : memref<?xi32, #hivm.address_space<gm>>
        %row = arith.index_cast %w : i32 to index
        %named = arith.cmpi sge, %row, %c0 : index
        scf.if %named {
          %from = arith.muli %row, %c128 : index
          %g = memref.reinterpret_cast %x to offset: [%from], sizes: [128], strides: [1] : memref<?xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: ?>, #hivm.address_space<gm>>
          hivm.hir.load ins(%g : memref<128xf16, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%line : memref<128xf16, #hivm.address_space<ub>>)
        } else {
          hivm.hir.vbrc ins(%zero : f16) outs(%line : memref<128xf16, #hivm.address_space<ub>>)
        }
        %to = arith.muli %i, %c128 : index
        %o = memref.reinterpret_cast %out to offset: [%to], sizes: [128], strides: [1] : memref<?xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: ?>, #hivm.address_space<gm>>
        hivm.hir.store ins(%line : memref<128xf16, #hivm.address_space<ub>>) outs(%o : memref<128xf16, strided<[1], offset: ?>, #hivm.address_space<gm>>)
      }
    }
  }
  return
}
}
