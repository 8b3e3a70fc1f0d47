namespace accrue {}
