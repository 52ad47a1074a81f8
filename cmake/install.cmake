# What `cmake --install` lays down: libferry, its headers, and the two ways to find them.
include(CMakePackageConfigHelpers)

install(TARGETS ferry EXPORT ferryTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ferry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# find_package(ferry) gives ferry::ferry.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)
install(EXPORT ferryTargets NAMESPACE ferry:: FILE ferryConfig.cmake DESTINATION ${package_dir})
write_basic_package_version_file(ferryConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ferryConfigVersion.cmake DESTINATION ${package_dir})

# pkg-config --cflags --libs ferry; paths are relative to the file, so that the prefix can move.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/ferry.pc.in ferry.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
